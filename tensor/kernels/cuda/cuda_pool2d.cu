// SPDX-License-Identifier: Apache-2.0
// Pooling and its gradients. Gradients go through the windows that an element
// lies in, in one order, instead of adding from many threads to one place.
#include "tensor/kernels/cuda/cuda_pool2d.h"

#include <math.h>

#include "tensor/kernels/cuda/cuda_code.cuh"
#include "tensor/kernels/cuda/cuda_group.cuh"

namespace {

typedef choir__cuda_pool2d_t pool2d_t;

// One place of an image, and the first of a thread's channels.
struct Spot {
  uint32_t sample;
  uint32_t channel;
  int row;
  int column;
};

CHOIR__GPU int64_t offset_of(const choir__cuda_image_t& at, const Spot& spot) {
  return spot.sample * at.sample + spot.row * at.row + spot.column * at.column +
         spot.channel * at.channel;
}

// That of thread number `index` among images of this size; false: none.
template <int each>
CHOIR__GPU bool find_spot(const pool2d_t& p, const int32_t* size,
                          uint32_t index, Spot* spot) {
  const uint32_t channels = p.channels / each;
  const uint32_t height = static_cast<uint32_t>(size[0]);
  const uint32_t width = static_cast<uint32_t>(size[1]);
  uint32_t rest = index;
  if (p.channels_last) {
    spot->channel = rest % channels * each;
    rest /= channels;
  }
  spot->column = static_cast<int>(rest % width);
  rest /= width;
  spot->row = static_cast<int>(rest % height);
  rest /= height;
  if (!p.channels_last) {
    spot->channel = rest % channels * each;
    rest /= channels;
  }
  spot->sample = rest;
  return rest < p.samples;
}

// A thread's channels of one place.
template <typename Element, int each>
struct alignas(sizeof(Element) * each) Channels {
  Element at[each];
};
template <typename Element, int each>
CHOIR__GPU Channels<Element, each>* channels_at(Element* data, int64_t offset) {
  return reinterpret_cast<Channels<Element, each>*>(data + offset);
}

// From and to, on one axis.
struct Span {
  int begin;
  int end;
};
// What a window has of the image.
CHOIR__GPU Span inside(const pool2d_t& p, int axis, int place) {
  const int begin = place * p.stride[axis] - p.padding[axis];
  const int end = begin + p.kernel[axis];
  return {begin < 0 ? 0 : begin, end > p.size[axis] ? p.size[axis] : end};
}
// The windows that hold a place of the image.
CHOIR__GPU Span windows(const pool2d_t& p, int axis, int place) {
  const int last = (place + p.padding[axis]) / p.stride[axis];
  const int before = place + p.padding[axis] - p.kernel[axis];
  const int begin = before < 0 ? 0 : before / p.stride[axis] + 1;
  return {begin, last < p.out[axis] ? last + 1 : p.out[axis]};
}

// The largest of each window, NaN counting as larger than all, the first of
// equals; and its place.
template <int each>
CHOIR__GPU void max_pool(const pool2d_t& p, uint32_t thread) {
  Spot spot;
  if (!find_spot<each>(p, p.out, thread, &spot)) return;
  const Span rows = inside(p, 0, spot.row);
  const Span columns = inside(p, 1, spot.column);
  const int top = spot.row * p.stride[0] - p.padding[0];
  const int left = spot.column * p.stride[1] - p.padding[1];
  Channels<float, each> most = {};
  Channels<uint8_t, each> argmax_index = {};
  bool is_first = true;
  Spot from = spot;
  for (from.row = rows.begin; from.row < rows.end; ++from.row) {
    for (from.column = columns.begin; from.column < columns.end;
         ++from.column) {
      const Channels<float, each> x =
          *channels_at<float, each>(p.x, offset_of(p.at_x, from));
      const int place = (from.row - top) * p.kernel[1] + from.column - left;
      for (int k = 0; k < each; ++k) {
        const float value = x.at[k], best = most.at[k];
        if (is_first || value > best || (value != value && best == best)) {
          most.at[k] = value;
          argmax_index.at[k] = static_cast<uint8_t>(place);
        }
      }
      is_first = false;
    }
  }
  *channels_at<float, each>(p.y, offset_of(p.at_y, spot)) = most;
  *channels_at<uint8_t, each>(p.index, offset_of(p.at_index, spot)) =
      argmax_index;
}

template <int each>
CHOIR__GPU void store(const pool2d_t& p, float* data, int64_t offset,
                      Channels<float, each> value) {
  Channels<float, each>* y = channels_at<float, each>(data, offset);
  if (p.accumulate)
    for (int k = 0; k < each; ++k) value.at[k] += y->at[k];
  *y = value;
}

template <int each>
CHOIR__GPU void avg_pool(const pool2d_t& p, uint32_t thread) {
  Spot spot;
  if (!find_spot<each>(p, p.out, thread, &spot)) return;
  const Span rows = inside(p, 0, spot.row);
  const Span columns = inside(p, 1, spot.column);
  Channels<float, each> sum = {};
  Spot from = spot;
  for (from.row = rows.begin; from.row < rows.end; ++from.row) {
    for (from.column = columns.begin; from.column < columns.end;
         ++from.column) {
      const Channels<float, each> x =
          *channels_at<float, each>(p.x, offset_of(p.at_x, from));
      for (int k = 0; k < each; ++k) sum.at[k] += x.at[k];
    }
  }
  const float size = static_cast<float>(p.kernel[0] * p.kernel[1]);
  for (int k = 0; k < each; ++k) sum.at[k] /= size;
  store<each>(p, p.y, offset_of(p.at_y, spot), sum);
}

// The sum of dy over the windows that hold the place: all of them, divided by
// the size of a window, or those whose argmax index it is.
template <int each, bool is_max>
CHOIR__GPU void pool_grad(const pool2d_t& p, uint32_t thread) {
  Spot spot;
  if (!find_spot<each>(p, p.size, thread, &spot)) return;
  const Span rows = windows(p, 0, spot.row);
  const Span columns = windows(p, 1, spot.column);
  Channels<float, each> sum = {};
  Spot from = spot;
  for (from.row = rows.begin; from.row < rows.end; ++from.row) {
    for (from.column = columns.begin; from.column < columns.end;
         ++from.column) {
      const Channels<float, each> dy =
          *channels_at<float, each>(p.y, offset_of(p.at_y, from));
      if (is_max) {
        const int down = spot.row + p.padding[0] - from.row * p.stride[0];
        const int right =
            spot.column + p.padding[1] - from.column * p.stride[1];
        const int place = down * p.kernel[1] + right;
        const Channels<uint8_t, each> argmax_index =
            *channels_at<uint8_t, each>(p.index, offset_of(p.at_index, from));
        for (int k = 0; k < each; ++k)
          if (argmax_index.at[k] == place) sum.at[k] += dy.at[k];
      } else {
        for (int k = 0; k < each; ++k) sum.at[k] += dy.at[k];
      }
    }
  }
  if (!is_max) {
    const float size = static_cast<float>(p.kernel[0] * p.kernel[1]);
    for (int k = 0; k < each; ++k) sum.at[k] /= size;
  }
  store<each>(p, p.x, offset_of(p.at_x, spot), sum);
}

}  // namespace

#define POOLING(name, one, group)                               \
  CHOIR__KERNEL(choir_##name, choir__cuda_pool2d_t) {           \
    one(params, CHOIR__THREAD);                                 \
  }                                                             \
  CHOIR__KERNEL(choir_##name##_grouped, choir__cuda_pool2d_t) { \
    group(params, CHOIR__THREAD);                               \
  }
POOLING(max_pool2d, max_pool<1>, max_pool<kWidth>)
POOLING(avg_pool2d, avg_pool<1>, avg_pool<kWidth>)
POOLING(max_pool2d_grad, (pool_grad<1, true>), (pool_grad<kWidth, true>))
POOLING(avg_pool2d_grad, (pool_grad<1, false>), (pool_grad<kWidth, false>))
#undef POOLING
