// SPDX-License-Identifier: Apache-2.0
#include "bench/net_ops.h"

#include <string.h>

static const net_op_t mnist_cnn_ops[] = {
    {CHOIR_OP_CONV2D, "N,1,28,28;20,1,5,5;20", "activation=relu", 1},
    {CHOIR_OP_MAX_POOL2D, "N,20,24,24", "kernel=2 stride=2", 1},
    {CHOIR_OP_CONV2D, "N,20,12,12;50,20,5,5;50", "activation=relu", 1},
    {CHOIR_OP_MAX_POOL2D, "N,50,8,8", "kernel=2 stride=2", 1},
    {CHOIR_OP_FLATTEN, "N,50,4,4", NULL, 1},
    {CHOIR_OP_LINEAR, "N,800;800,500;500", NULL, 1},
    {CHOIR_OP_RELU, "N,500", NULL, 1},
    {CHOIR_OP_LINEAR, "N,500;500,10;10", NULL, 1},
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY, "N,10;N", NULL, 1},
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD, "N,10;N;1", NULL, 1},
    {CHOIR_OP_SUM, "N,10", "axis=0", 1},
    {CHOIR_OP_MATMUL, "N,500;N,10", "transpose_a=1", 1},
    {CHOIR_OP_MATMUL, "N,10;500,10", "transpose_b=1", 1},
    {CHOIR_OP_RELU_GRAD, "N,500;N,500", NULL, 1},
    {CHOIR_OP_SUM, "N,500", "axis=0", 1},
    {CHOIR_OP_MATMUL, "N,800;N,500", "transpose_a=1", 1},
    {CHOIR_OP_MATMUL, "N,500;800,500", "transpose_b=1", 1},
    {CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT,
     "N,20,12,12;N,50,4,4;50,20,5,5;N,50,4,4;N,50,4,4",
     "conv.activation=relu pool.kernel=2", 1},
    {CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA,
     "N,20,12,12;N,50,4,4;50,20,5,5;N,50,4,4;N,50,4,4",
     "conv.activation=relu pool.kernel=2", 1},
    {CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT,
     "N,1,28,28;N,20,12,12;20,1,5,5;N,20,12,12;N,20,12,12",
     "conv.activation=relu pool.kernel=2", 1},
    {CHOIR_OP_SGD_UPDATE, "431080;431080;431080",
     "momentum=0.9 weight_decay=1e-5", 1},
};

static const net_op_t mlp_ops[] = {
    {CHOIR_OP_LINEAR, "N,784;784,4096;4096", NULL, 1},
    {CHOIR_OP_LINEAR, "N,4096;4096,4096;4096", NULL, 1},
    {CHOIR_OP_LINEAR, "N,4096;4096,10;10", NULL, 1},
    {CHOIR_OP_RELU, "N,4096", NULL, 2},
    {CHOIR_OP_RELU_GRAD, "N,4096;N,4096", NULL, 2},
    {CHOIR_OP_SUM, "N,4096", "axis=0", 2},
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY, "N,10;N", NULL, 1},
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD, "N,10;N;1", NULL, 1},
    {CHOIR_OP_SUM, "N,10", "axis=0", 1},
    {CHOIR_OP_MATMUL, "N,4096;N,10", "transpose_a=1", 1},
    {CHOIR_OP_MATMUL, "N,10;4096,10", "transpose_b=1", 1},
    {CHOIR_OP_MATMUL, "N,4096;N,4096", "transpose_a=1", 1},
    {CHOIR_OP_MATMUL, "N,4096;4096,4096", "transpose_b=1", 1},
    {CHOIR_OP_MATMUL, "N,784;N,4096", "transpose_a=1", 1},
    {CHOIR_OP_SGD_UPDATE, "16777216;16777216;16777216",
     "momentum=0.9 weight_decay=1e-5", 1},
    {CHOIR_OP_SGD_UPDATE, "3211264;3211264;3211264",
     "momentum=0.9 weight_decay=1e-5", 1},
};

static const net_op_t resnet20_ops[] = {
    {CHOIR_OP_CONV2D, "N,3,32,32;16,3,3,3;16", "padding=1", 1},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,3,32,32;16,3,3,3;N,16,32,32", "padding=1",
     1},
    {CHOIR_OP_CONV2D, "N,16,32,32;16,16,3,3;16", "padding=1", 6},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,16,32,32;16,16,3,3;N,16,32,32",
     "padding=1", 6},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,16,32,32;16,16,3,3;N,16,32,32", "padding=1",
     6},
    {CHOIR_OP_CONV2D, "N,16,32,32;32,16,3,3;32", "stride=2 padding=1", 1},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,16,32,32;32,16,3,3;N,32,16,16",
     "stride=2 padding=1", 1},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,16,32,32;32,16,3,3;N,32,16,16",
     "stride=2 padding=1", 1},
    {CHOIR_OP_CONV2D, "N,32,16,16;32,32,3,3;32", "padding=1", 5},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,32,16,16;32,32,3,3;N,32,16,16",
     "padding=1", 5},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,32,16,16;32,32,3,3;N,32,16,16", "padding=1",
     5},
    {CHOIR_OP_CONV2D, "N,32,16,16;64,32,3,3;64", "stride=2 padding=1", 1},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,32,16,16;64,32,3,3;N,64,8,8",
     "stride=2 padding=1", 1},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,32,16,16;64,32,3,3;N,64,8,8",
     "stride=2 padding=1", 1},
    {CHOIR_OP_CONV2D, "N,64,8,8;64,64,3,3;64", "padding=1", 5},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,64,8,8;64,64,3,3;N,64,8,8", "padding=1",
     5},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,64,8,8;64,64,3,3;N,64,8,8", "padding=1", 5},
    {CHOIR_OP_CONV2D, "N,16,32,32;32,16,1,1;32", "stride=2", 1},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,16,32,32;32,16,1,1;N,32,16,16", "stride=2",
     1},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,16,32,32;32,16,1,1;N,32,16,16", "stride=2",
     1},
    {CHOIR_OP_CONV2D, "N,32,16,16;64,32,1,1;64", "stride=2", 1},
    {CHOIR_OP_CONV2D_GRAD_WEIGHT, "N,32,16,16;64,32,1,1;N,64,8,8", "stride=2",
     1},
    {CHOIR_OP_CONV2D_GRAD_DATA, "N,32,16,16;64,32,1,1;N,64,8,8", "stride=2", 1},
    {CHOIR_OP_BATCH_NORM, "N,16,32,32;16;16", NULL, 7},
    {CHOIR_OP_BATCH_NORM_GRAD, "N,16,32,32;16;16;16;N,16,32,32", NULL, 7},
    {CHOIR_OP_RELU, "N,16,32,32", NULL, 7},
    {CHOIR_OP_RELU_GRAD, "N,16,32,32;N,16,32,32", NULL, 7},
    {CHOIR_OP_ADD, "N,16,32,32;N,16,32,32", NULL, 6},
    {CHOIR_OP_BATCH_NORM, "N,32,16,16;32;32", NULL, 7},
    {CHOIR_OP_BATCH_NORM_GRAD, "N,32,16,16;32;32;32;N,32,16,16", NULL, 7},
    {CHOIR_OP_RELU, "N,32,16,16", NULL, 6},
    {CHOIR_OP_RELU_GRAD, "N,32,16,16;N,32,16,16", NULL, 6},
    {CHOIR_OP_ADD, "N,32,16,16;N,32,16,16", NULL, 5},
    {CHOIR_OP_BATCH_NORM, "N,64,8,8;64;64", NULL, 7},
    {CHOIR_OP_BATCH_NORM_GRAD, "N,64,8,8;64;64;64;N,64,8,8", NULL, 7},
    {CHOIR_OP_RELU, "N,64,8,8", NULL, 6},
    {CHOIR_OP_RELU_GRAD, "N,64,8,8;N,64,8,8", NULL, 6},
    {CHOIR_OP_ADD, "N,64,8,8;N,64,8,8", NULL, 5},
    {CHOIR_OP_AVG_POOL2D, "N,64,8,8", "kernel=8", 1},
    {CHOIR_OP_AVG_POOL2D_GRAD, "N,64,8,8;N,64,1,1", "kernel=8", 1},
    {CHOIR_OP_LINEAR, "N,64;64,10;10", NULL, 1},
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY, "N,10;N", NULL, 1},
    {CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD, "N,10;N;1", NULL, 1},
    {CHOIR_OP_SUM, "N,10", "axis=0", 1},
    {CHOIR_OP_MATMUL, "N,64;N,10", "transpose_a=1", 1},
    {CHOIR_OP_MATMUL, "N,10;64,10", "transpose_b=1", 1},
    {CHOIR_OP_SGD_UPDATE, "272474;272474;272474",
     "momentum=0.9 weight_decay=1e-5", 1},
};

// What a GPT does beside its products, at 12 blocks, words of 256 and heads of
// 64 columns.
#define HEADS(heads, t, d) "N," #heads "," #t "," #d
#define QKV(heads, t, d) \
  HEADS(heads, t, d) ";" HEADS(heads, t, d) ";" HEADS(heads, t, d)
#define ATTENTION(heads, t, d, calls)                                   \
  {CHOIR_OP_ATTENTION, QKV(heads, t, d), "causal=1", calls}, {          \
    CHOIR_OP_ATTENTION_GRAD,                                            \
        QKV(heads, t, d) ";" HEADS(heads, t, d) ";N," #heads "," #t     \
                                                ";" HEADS(heads, t, d), \
        "causal=1", calls                                               \
  }
#define GPT_OPS(width, heads, hidden)                                          \
  {CHOIR_OP_GATHER, "50257," #width ";N,256", NULL, 1},                        \
      {CHOIR_OP_GATHER_GRAD, "50257," #width ";N,256;N,256," #width, NULL, 1}, \
      {CHOIR_OP_LAYER_NORM, "N,256," #width ";" #width ";" #width, NULL, 25},  \
      {CHOIR_OP_LAYER_NORM_GRAD, "N,256," #width ";" #width ";N,256," #width,  \
       NULL, 25},                                                              \
      ATTENTION(heads, 256, 64, 12),                                           \
      {CHOIR_OP_GELU, "N,256," #hidden, NULL, 12},                             \
      {CHOIR_OP_GELU_GRAD, "N,256," #hidden ";N,256," #hidden, NULL, 12},      \
      {CHOIR_OP_ADD, "N,256," #width ";N,256," #width, NULL, 24},
static const net_op_t gpt384_ops[] = {GPT_OPS(384, 6, 1536)};
static const net_op_t gpt768_ops[] = {GPT_OPS(768, 12, 3072)};

// Attention alone, at five lengths; the first is that of gpt_nano.
static const net_op_t attention_ops[] = {
    ATTENTION(48, 64, 32, 1),   ATTENTION(64, 256, 64, 1),
    ATTENTION(12, 1024, 64, 1), ATTENTION(4, 4096, 64, 1),
    ATTENTION(2, 16384, 64, 1),
};

// Rotary positions of queries and keys: TinyLlama 1.1B, Llama 2 7B, Llama 3 8B.
#define ROTARY(heads, t, columns, calls)                               \
  {CHOIR_OP_ROTARY, "N," #heads "," #t "," #columns, NULL, calls}, {   \
    CHOIR_OP_ROTARY_GRAD, "N," #heads "," #t "," #columns, NULL, calls \
  }
static const net_op_t rotary_ops[] = {
    ROTARY(32, 2048, 64, 22), ROTARY(4, 2048, 64, 22),
    ROTARY(32, 4096, 128, 64), ROTARY(32, 8192, 128, 32),
    ROTARY(8, 8192, 128, 32)};

// GPT-2's loss, and the ops that it takes without linear_cross_entropy.
#define VOCABULARY(n)                                                        \
  {CHOIR_OP_LINEAR_CROSS_ENTROPY, #n ",768;" #n ";50257,768", "transpose=1", \
   1},                                                                       \
      {CHOIR_OP_LINEAR_CROSS_ENTROPY_GRAD,                                   \
       #n ",768;" #n ";50257,768;" #n ";1", "transpose=1", 1},               \
      {CHOIR_OP_MATMUL, #n ",768;50257,768", "transpose_b=1", 1},            \
      {CHOIR_OP_SOFTMAX_CROSS_ENTROPY, #n ",50257;" #n, NULL, 1},            \
      {CHOIR_OP_SOFTMAX_CROSS_ENTROPY_GRAD, #n ",50257;" #n ";1", NULL, 1},  \
      {CHOIR_OP_MATMUL, #n ",50257;50257,768", NULL, 1}, {                   \
    CHOIR_OP_MATMUL, #n ",50257;" #n ",768", "transpose_a=1", 1              \
  }
static const net_op_t vocabulary_ops[] = {VOCABULARY(256), VOCABULARY(4096)};

#define OPS_OF(net) net##_ops, sizeof(net##_ops) / sizeof(net##_ops[0])

static const net_ops_t nets[] = {{"mnist_cnn", 64, OPS_OF(mnist_cnn)},
                                 {"mlp", 128, OPS_OF(mlp)},
                                 {"resnet20", 128, OPS_OF(resnet20)},
                                 {"attention", 1, OPS_OF(attention)},
                                 {"gpt384", 8, OPS_OF(gpt384)},
                                 {"gpt768", 8, OPS_OF(gpt768)},
                                 {"rotary", 1, OPS_OF(rotary)},
                                 {"vocabulary", 1, OPS_OF(vocabulary)}};

const net_ops_t* net_ops_find(const char* name) {
  for (size_t i = 0; i < sizeof(nets) / sizeof(nets[0]); ++i)
    if (strcmp(nets[i].name, name) == 0) return &nets[i];
  return NULL;
}
