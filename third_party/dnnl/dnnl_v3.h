// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_THIRD_PARTY_DNNL_DNNL_V3_H_
#define CHOIR_THIRD_PARTY_DNNL_DNNL_V3_H_

// oneDNN by the C interface of version 3, whichever version is installed:
// include this in place of oneapi/dnnl/dnnl.h, and read version 3's manual.
// Version 2 (Debian 12) lacks what dnnl_v3_over_v2.h then adds. Nothing outside
// these two files asks for the version.

#include "oneapi/dnnl/dnnl_version.h"

#if DNNL_VERSION_MAJOR >= 3
#include "oneapi/dnnl/dnnl.h"
#else
#include "third_party/dnnl/dnnl_v3_over_v2.h"
#endif

#endif  // CHOIR_THIRD_PARTY_DNNL_DNNL_V3_H_
