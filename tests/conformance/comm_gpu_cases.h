// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_COMM_GPU_CASES_H_
#define CHOIR_TESTS_CONFORMANCE_COMM_GPU_CASES_H_

#include <math.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/comm_suite.h"

// Collectives of every kind as data, to be run on memory of the host and of a
// GPU: a GPU's must do to its memory what the host's does, byte for byte, also
// around the results.

namespace comm_suite {

// One rank's part: an image of memory, and where in it src and dst are.
struct GpuCase {
  std::string name;
  choir_collective_t collective = {};  // without src and dst
  std::vector<unsigned char> image;
  size_t src_at = 0;
  size_t dst_at = 0;
  std::vector<int64_t> splits;
  std::vector<std::pair<size_t, size_t>> tensors;  // src and dst of each
  std::vector<int64_t> tensor_counts;
};

// Runs the case on `base`, where its image is; `counts` are what came.
inline choir_status_t RunCase(
    const GpuCase& own, unsigned char* base, int size,
    const std::function<choir_status_t(const choir_collective_t&)>& run,
    std::vector<int64_t>* counts) {
  choir_collective_t collective = own.collective;
  counts->assign(static_cast<size_t>(size), 0);
  collective.src = base + own.src_at;
  collective.dst = base + own.dst_at;
  collective.splits = own.splits.empty() ? nullptr : own.splits.data();
  collective.counts = counts->data();
  collective.name = own.name.c_str();
  std::vector<choir_comm_tensor_t> tensors;
  for (size_t i = 0; i < own.tensors.size(); ++i)
    tensors.push_back({base + own.tensors[i].first,
                       base + own.tensors[i].second, own.tensor_counts[i]});
  if (!tensors.empty()) collective.tensors = tensors.data();
  collective.tensor_count = static_cast<int32_t>(tensors.size());
  return run(collective);
}

class GpuCases {
 public:
  GpuCases(int rank, int size) : rank_(rank), size_(size) { Make(); }
  const std::vector<GpuCase>& list() const { return list_; }

 private:
  // An image with `src` elements of data, then room for `dst`, with guards.
  GpuCase* Add(const std::string& name, choir_collective_kind_t kind,
               choir_dtype_t dtype, int64_t count, int64_t src, int64_t dst) {
    GpuCase one;
    const size_t e = choir_dtype_bytes(dtype);
    one.name =
        name + " " + choir_dtype_name(dtype) + " " + std::to_string(count);
    one.collective.kind = kind;
    one.collective.dtype = dtype;
    one.collective.count = count;
    one.collective.capacity = dst;
    one.collective.weight = 1;
    one.collective.root = size_ - 1;
    one.src_at = kGuard;
    one.dst_at = 2 * kGuard + static_cast<size_t>(src) * e;
    one.image.assign(one.dst_at + static_cast<size_t>(dst) * e + kGuard,
                     kGuardByte);
    const auto data = Data(rank_, src, dtype);
    memcpy(&one.image[one.src_at], data.data(), static_cast<size_t>(src) * e);
    list_.push_back(one);
    return &list_.back();
  }
  void InPlace(GpuCase* one, int64_t offset) {
    one->name += " in place";
    one->dst_at = one->src_at + static_cast<size_t>(offset) *
                                    choir_dtype_bytes(one->collective.dtype);
  }

  void Make() {
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{20011}})
      MakeOf(count);
    for (choir_dtype_t dtype : kDtypes) {
      for (choir_reduce_t op : kOps) {
        if (op == CHOIR_REDUCE_AVERAGE && !choir_dtype_is_float(dtype))
          continue;
        GpuCase* one = Add("all_reduce of op " + std::to_string(op),
                           CHOIR_COLLECTIVE_ALL_REDUCE, dtype, 65, 65, 65);
        one->collective.op = op;
      }
    }
    MakeAverages();
    MakeGroups();
  }

  void MakeOf(int64_t n) {
    const int64_t all = n * size_;
    const bool is_root = rank_ == size_ - 1;
    const choir_dtype_t f32 = CHOIR_DTYPE_F32;
    Add("all_reduce", CHOIR_COLLECTIVE_ALL_REDUCE, f32, n, n, n);
    InPlace(Add("all_reduce", CHOIR_COLLECTIVE_ALL_REDUCE, f32, n, n, 0), 0);
    Add("reduce", CHOIR_COLLECTIVE_REDUCE, f32, n, n, is_root ? n : 0);
    InPlace(
        Add("broadcast", CHOIR_COLLECTIVE_BROADCAST, CHOIR_DTYPE_U8, n, n, 0),
        0);
    Add("all_gather", CHOIR_COLLECTIVE_ALL_GATHER, CHOIR_DTYPE_F16, n, n, all);
    GpuCase* gather =
        Add("all_gather", CHOIR_COLLECTIVE_ALL_GATHER, f32, n, all, 0);
    InPlace(gather, 0);
    gather->src_at += static_cast<size_t>(n * rank_) * 4;
    Add("reduce_scatter", CHOIR_COLLECTIVE_REDUCE_SCATTER, f32, n, all, n);
    InPlace(
        Add("reduce_scatter", CHOIR_COLLECTIVE_REDUCE_SCATTER, f32, n, all, 0),
        n * rank_);
    int64_t start, share;
    choir_comm_share(n, rank_, size_, &start, &share);
    Add("reduce_scatter_v", CHOIR_COLLECTIVE_REDUCE_SCATTER_V, f32, n, n,
        share);
    InPlace(Add("reduce_scatter_v", CHOIR_COLLECTIVE_REDUCE_SCATTER_V, f32, n,
                n, 0),
            start);
    Add("gather", CHOIR_COLLECTIVE_GATHER, CHOIR_DTYPE_I64, n, n,
        is_root ? all : 0);
    Add("scatter", CHOIR_COLLECTIVE_SCATTER, f32, n, is_root ? all : 0, n);
    Add("all_to_all", CHOIR_COLLECTIVE_ALL_TO_ALL, CHOIR_DTYPE_I32, n, all,
        all);
    Add("barrier", CHOIR_COLLECTIVE_BARRIER, f32, n, n, n);
    // Counts of each rank's own, with room for more than comes.
    const int64_t own = n * (rank_ + 1) / 2;
    const int64_t room = n * size_ * (size_ + 1) / 2 + 3;
    Add("all_gather_v", CHOIR_COLLECTIVE_ALL_GATHER_V, CHOIR_DTYPE_U8, own, own,
        room)
        ->name = "all_gather_v " + std::to_string(n);
    Add("gather_v", CHOIR_COLLECTIVE_GATHER_V, f32, own, own,
        is_root ? room : 0)
        ->name = "gather_v " + std::to_string(n);
    MakeSplits("scatter_v", CHOIR_COLLECTIVE_SCATTER_V, n, is_root);
    MakeSplits("all_to_all_v", CHOIR_COLLECTIVE_ALL_TO_ALL_V, n, true);
  }

  void MakeSplits(const std::string& name, choir_collective_kind_t kind,
                  int64_t n, bool gives) {
    std::vector<int64_t> splits;
    int64_t sum = 0;
    for (int r = 0; gives && r < size_; ++r) {
      splits.push_back((rank_ + r) % 3 * n);
      sum += splits.back();
    }
    GpuCase* one =
        Add(name, kind, CHOIR_DTYPE_F32, sum, sum, 2 * n * size_ + 1);
    one->name = name + " " + std::to_string(n);
    one->splits = splits;
  }

  void MakeAverages() {
    for (choir_dtype_t dtype : {CHOIR_DTYPE_F32, CHOIR_DTYPE_F64,
                                CHOIR_DTYPE_F16, CHOIR_DTYPE_BF16}) {
      GpuCase* one = Add("weighted average", CHOIR_COLLECTIVE_ALL_REDUCE, dtype,
                         77, 77, 77);
      one->collective.op = CHOIR_REDUCE_AVERAGE;
      // One has none, and what is not a number: it adds nothing.
      const bool is_idle = size_ > 1 && rank_ == 1;
      one->collective.weight = is_idle ? 0 : 16 - rank_;
      if (is_idle) choir_element_store(&one->image[one->src_at], dtype, NAN);
      GpuCase* scaled =
          Add("scaled sum", CHOIR_COLLECTIVE_ALL_REDUCE, dtype, 77, 77, 77);
      scaled->collective.scales = true;
      scaled->collective.prescale = 0.5;
      scaled->collective.postscale = 4;
    }
  }

  // Three tensors: one of no elements, one whose dst is its src.
  void MakeGroups() {
    const choir_collective_kind_t kinds[] = {
        CHOIR_COLLECTIVE_ALL_REDUCE, CHOIR_COLLECTIVE_BROADCAST,
        CHOIR_COLLECTIVE_ALL_GATHER, CHOIR_COLLECTIVE_REDUCE_SCATTER};
    for (choir_collective_kind_t kind : kinds) {
      const bool scatters = kind == CHOIR_COLLECTIVE_REDUCE_SCATTER;
      const bool gathers = kind == CHOIR_COLLECTIVE_ALL_GATHER;
      const int64_t src = 50 * (scatters ? size_ : 1);
      const int64_t dst = 50 * (gathers ? size_ : 1);
      GpuCase* one = Add("group of kind " + std::to_string(kind), kind,
                         CHOIR_DTYPE_F32, 0, 2 * src, 2 * dst);
      one->tensor_counts = {50, 0, 7};
      const size_t second = static_cast<size_t>(src) * 4;
      one->tensors = {
          {one->src_at, one->dst_at},
          {one->src_at, one->dst_at},
          {one->src_at + second, one->dst_at + static_cast<size_t>(dst) * 4}};
      if (kind == CHOIR_COLLECTIVE_ALL_REDUCE)
        one->tensors[2].second = one->tensors[2].first;
    }
  }

  int rank_;
  int size_;
  std::vector<GpuCase> list_;
};

// Memory of a GPU with an image in it.
class GpuImage {
 public:
  GpuImage(choir_stream_t* stream, const std::vector<unsigned char>& image)
      : stream_(stream), bytes_(image.size()) {
    EXPECT_OK(
        choir_buffer_create(choir_stream_device(stream), bytes_, &buffer_));
    EXPECT_OK(choir_buffer_write(buffer_, stream, 0, image.data(), bytes_));
  }
  ~GpuImage() { choir_buffer_release(buffer_); }
  GpuImage(const GpuImage&) = delete;
  GpuImage& operator=(const GpuImage&) = delete;

  unsigned char* data() {
    return static_cast<unsigned char*>(choir_buffer_data(buffer_));
  }
  std::vector<unsigned char> Read() {
    std::vector<unsigned char> image(bytes_);
    EXPECT_OK(choir_buffer_read(buffer_, stream_, 0, image.data(), bytes_));
    return image;
  }

 private:
  choir_stream_t* stream_;
  choir_buffer_t* buffer_ = nullptr;
  size_t bytes_;
};

// What rounding and another order may make of sums.
inline double Tolerance(choir_dtype_t dtype) {
  switch (dtype) {
    case CHOIR_DTYPE_F64:
      return 1e-12;
    case CHOIR_DTYPE_F32:
      return 1e-5;
    case CHOIR_DTYPE_F16:
      return 1e-2;
    case CHOIR_DTYPE_BF16:
      return 5e-2;
    default:
      return 0;
  }
}

// The first byte that is not what it should be, or -1.
inline int64_t FirstFar(const std::vector<unsigned char>& found,
                        const std::vector<unsigned char>& wanted,
                        choir_dtype_t dtype, double tolerance) {
  const size_t e = choir_dtype_bytes(dtype);
  for (size_t at = 0; at + e <= wanted.size(); at += e) {
    if (!memcmp(&found[at], &wanted[at], e)) continue;
    if (!choir_dtype_is_float(dtype)) return static_cast<int64_t>(at);
    const double x = choir_element_load(&found[at], dtype);
    const double y = choir_element_load(&wanted[at], dtype);
    if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
      return static_cast<int64_t>(at);
  }
  return -1;
}

// Runs all cases on memory of the stream's GPU and on the host's, with the same
// results, but for `tolerance` of numbers.
inline void DoLikeTheHost(choir_comm_t* comm, choir_stream_t* stream,
                          double (*tolerance)(choir_dtype_t)) {
  const int size = choir_comm_size(comm);
  const GpuCases cases(choir_comm_rank(comm), size);
  for (const GpuCase& one : cases.list()) {
    SCOPED_TRACE(one.name);
    std::vector<unsigned char> host = one.image;
    std::vector<int64_t> host_counts;
    ASSERT_OK(RunCase(
        one, host.data(), size,
        [&](const choir_collective_t& c) { return choir_comm_run(comm, &c); },
        &host_counts));
    GpuImage image(stream, one.image);
    std::vector<int64_t> counts;
    ASSERT_OK(RunCase(
        one, image.data(), size,
        [&](const choir_collective_t& c) {
          return choir_comm_submit(comm, stream, &c);
        },
        &counts));
    const choir_dtype_t dtype = one.collective.dtype;
    ASSERT_EQ(FirstFar(image.Read(), host, dtype, tolerance(dtype)), -1);
    ASSERT_EQ(counts, host_counts);
  }
}

}  // namespace comm_suite

#endif  // CHOIR_TESTS_CONFORMANCE_COMM_GPU_CASES_H_
