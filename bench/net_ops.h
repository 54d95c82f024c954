// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_BENCH_NET_OPS_H_
#define CHOIR_BENCH_NET_OPS_H_

#include "tensor/op_def.h"

// The ops of one training step of a network of examples/, from the image to
// the update, or of a GPT those that are no products: each shape once, with how
// often it comes.

typedef struct net_op_s {
  choir_op_t op;
  const char* shapes;  // as in choir_op_case_t; N stands for the batch
  const char* attrs;
  int a_step;  // times
} net_op_t;

typedef struct net_ops_s {
  const char* name;
  int batch;  // unless told otherwise
  const net_op_t* ops;
  int count;
} net_ops_t;

// NULL: there is no such network.
const net_ops_t* net_ops_find(const char* name);

#endif  // CHOIR_BENCH_NET_OPS_H_
