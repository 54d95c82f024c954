// SPDX-License-Identifier: Apache-2.0
// gloo_all_reduce RANK SIZE FOLDER ring|bcube BYTES[,BYTES...] [--touch]
// Times Gloo's all-reduce of f32 sums in place over TCP on this host, its only
// transport between processes there, and has rank 0 print a JSON line for each
// size, as bench_collectives does. Ranks meet in FOLDER, which is empty.
// --touch: each rank writes all of its memory before each repetition, untimed.
// Built by collectives.py where libgloo-dev is installed.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kBatches = 11;
constexpr double kBatchSeconds = 0.02;

using Algorithm = gloo::AllreduceOptions::Algorithm;
using Clock = std::chrono::steady_clock;

class Bench {
 public:
  Bench(std::shared_ptr<gloo::Context> context, Algorithm algorithm, bool touch)
      : context_(std::move(context)), algorithm_(algorithm), touch_(touch) {}

  void Measure(size_t bytes) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    Run(&data, 3);
    double repeats =
        std::clamp(kBatchSeconds / Run(&data, 8) + 1, 1.0, 20000.0);
    gloo::BroadcastOptions broadcast(context_);
    broadcast.setRoot(0);
    broadcast.setOutput(&repeats, 1);
    broadcast.setTag(1);
    gloo::broadcast(broadcast);
    std::vector<double> seconds;
    for (int batch = 0; batch < kBatches; ++batch)
      seconds.push_back(Run(&data, static_cast<int>(repeats)));
    std::sort(seconds.begin(), seconds.end());
    if (context_->rank == 0)
      std::printf(
          "{\"comm\": \"gloo\", \"ranks\": %d, \"bytes\": %zu, "
          "\"repeats\": %d, \"median_us\": %.3f, \"min_us\": %.3f, "
          "\"max_us\": %.3f}\n",
          context_->size, bytes, static_cast<int>(repeats),
          seconds[kBatches / 2] * 1e6, seconds.front() * 1e6,
          seconds.back() * 1e6);
  }

 private:
  void Barrier() {
    gloo::BarrierOptions barrier(context_);
    barrier.setTag(2);
    gloo::barrier(barrier);
  }

  double Run(std::vector<float>* data, int repeats) {
    // The options hold the registered memory, which a program keeps as well.
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(algorithm_);
    options.setOutput(data->data(), data->size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(
            &gloo::sum<float>));
    std::chrono::duration<double> total{0};
    Barrier();
    auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) {
      if (touch_) {
        std::fill(data->begin(), data->end(), 0.0f);
        Barrier();
        start = Clock::now();
      }
      gloo::allreduce(options);
      if (touch_) total += Clock::now() - start;
    }
    if (!touch_) total = Clock::now() - start;
    return total.count() / repeats;
  }

  std::shared_ptr<gloo::Context> context_;
  Algorithm algorithm_;
  bool touch_;
};

void Work(char** argv, bool touch) {
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::FileStore store(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(
      std::atoi(argv[1]), std::atoi(argv[2]));
  context->connectFullMesh(store, device);
  Bench bench(
      context,
      std::strcmp(argv[4], "ring") == 0 ? Algorithm::RING : Algorithm::BCUBE,
      touch);
  for (const char* sizes = argv[5]; *sizes;) {
    char* end;
    const size_t bytes = std::strtoull(sizes, &end, 10);
    if (end == sizes) throw std::invalid_argument("no size");
    bench.Measure(bytes / sizeof(float) * sizeof(float));
    sizes = *end == ',' ? end + 1 : end;
  }
  gloo::BarrierOptions last(context);
  last.setTag(3);
  gloo::barrier(last);
}

}  // namespace

int main(int argc, char** argv) {
  const bool touch = argc == 7 && std::strcmp(argv[6], "--touch") == 0;
  if (argc != 6 && !touch) {
    std::fprintf(stderr,
                 "usage: gloo_all_reduce RANK SIZE FOLDER ring|bcube "
                 "BYTES[,BYTES...] [--touch]\n");
    return 2;
  }
  try {
    Work(argv, touch);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_all_reduce: %s\n", error.what());
    return 1;
  }
  return 0;
}
