// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/dtype.h"

namespace choir {
namespace testing {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

enum {
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kInProgress = CHOIR__NCCL_IN_PROGRESS,
};
constexpr int kMadeOps = 100;  // numbers of made reductions begin here

choir_dtype_t DtypeOf(int type) {
  switch (type) {
    case CHOIR__NCCL_FLOAT32:
      return CHOIR_DTYPE_F32;
    case CHOIR__NCCL_FLOAT64:
      return CHOIR_DTYPE_F64;
    case CHOIR__NCCL_FLOAT16:
      return CHOIR_DTYPE_F16;
    case CHOIR__NCCL_BFLOAT16:
      return CHOIR_DTYPE_BF16;
    case CHOIR__NCCL_INT32:
      return CHOIR_DTYPE_I32;
    case CHOIR__NCCL_INT64:
      return CHOIR_DTYPE_I64;
    default:
      return CHOIR_DTYPE_U8;
  }
}
size_t BytesOf(int type) { return choir_dtype_bytes(DtypeOf(type)); }

template <typename T>
T Combine(int op, T a, T b) {
  if (op == CHOIR__NCCL_MAX) return std::max(a, b);
  if (op == CHOIR__NCCL_MIN) return std::min(a, b);
  return op == CHOIR__NCCL_PRODUCT ? a * b : a + b;
}

// The calling thread's, between the start and the end of a group.
thread_local int group_depth = 0;

}  // namespace

FakeNccl* FakeNccl::self_ = nullptr;

FakeNccl::FakeNccl(FakeCuda* cuda) : cuda_(cuda) {
  self_ = this;
  table_ = MakeTable();
  choir__nccl_replace(&table_);
}

FakeNccl::~FakeNccl() {
  choir__nccl_replace(nullptr);
  self_ = nullptr;
  for (const Comm& comm : comms_) {
    EXPECT_TRUE(comm.is_gone) << "rank " << comm.rank << "'s is left";
    EXPECT_TRUE(comm.is_aborted || comm.open_ops == 0)
        << comm.open_ops << " reductions of rank " << comm.rank << " are left";
  }
}

void FakeNccl::Misuse(const std::string& what) {
  ADD_FAILURE() << "NCCL would not stand this: " << what;
}

void FakeNccl::FailNext(const std::string& symbol, int result, int skip) {
  Lock lock(cuda_->lock());
  planned_[symbol] = {skip, result};
}

int FakeNccl::Calls(const std::string& symbol) const {
  Lock lock(cuda_->lock());
  auto found = calls_.find(symbol);
  return found == calls_.end() ? 0 : found->second;
}

void FakeNccl::Hold(int rank) {
  Lock lock(cuda_->lock());
  held_.insert(rank);
}

void FakeNccl::SetState(int rank, int result) {
  Lock lock(cuda_->lock());
  for (Comm& comm : comms_)
    if (comm.rank == rank) comm.state = result;
}

std::vector<std::string> FakeNccl::TakeLog(int rank) {
  Lock lock(cuda_->lock());
  std::vector<std::string> log;
  for (Comm& comm : comms_)
    if (comm.rank == rank)
      for (std::string& line : std::exchange(comm.log, {})) log.push_back(line);
  return log;
}

int FakeNccl::Begin(const std::string& symbol) {
  ++calls_[symbol];
  auto plan = planned_.find(symbol);
  if (plan == planned_.end() || plan->second.skip-- > 0) return 0;
  const int result = plan->second.result;
  planned_.erase(plan);
  return result;
}

// A call with a communicator.
int FakeNccl::Enter(const std::string& symbol, Comm* comm) {
  if (!comm || comm->is_gone) {
    Misuse(symbol + " of a communicator that has ended");
    return kInvalidArgument;
  }
  if (symbol != "ncclCommGetAsyncError" && cuda_->CurrentGpu() != comm->gpu)
    Misuse(symbol + " without the context of its GPU");
  return Begin(symbol);
}

// ---- Work ----

int FakeNccl::Add(const std::string& symbol, Comm* comm,
                  choir__cu_stream_t stream, Job job, size_t src_parts,
                  size_t dst_parts) {
  const int scripted = Enter(symbol, comm);
  if (scripted) return scripted;
  if (group_depth == 0) Misuse(symbol + " outside a group");
  const size_t bytes = job.count * BytesOf(job.type);
  if (src_parts && !cuda_->IsOnGpu(job.src, bytes * src_parts))
    Misuse(symbol + " from memory that is no GPU's");
  if (dst_parts && !cuda_->IsOnGpu(job.dst, bytes * dst_parts))
    Misuse(symbol + " to memory that is no GPU's");
  if (job.kind == "send")
    job.number = ++comm->sent[job.peer];
  else if (job.kind == "receive")
    job.number = ++comm->received[job.peer];
  else
    job.number = ++comm->collectives;
  comm->log.push_back(job.kind + " " + std::to_string(job.count) + " " +
                      choir_dtype_name(DtypeOf(job.type)));
  if (comm->unlaunched.empty() || comm->unlaunched.back()->stream != stream) {
    comm->unlaunched.push_back(std::make_shared<Launch>());
    comm->unlaunched.back()->stream = stream;
  }
  comm->unlaunched.back()->jobs.push_back(std::make_shared<Job>(job));
  comm->polls = 2;
  return 0;
}

void FakeNccl::Submit(Comm* comm) {
  for (const auto& launch : std::exchange(comm->unlaunched, {})) {
    std::vector<const void*> touches;
    for (const auto& job : launch->jobs) {
      touches.push_back(job->src);
      touches.push_back(job->dst);
    }
    comm->launches.push_back(launch);
    launch->place = cuda_->LaunchWhen(
        launch->stream,
        [this, comm, launch] { return IsReady(comm, launch.get()); }, touches);
  }
}

bool FakeNccl::IsReady(Comm* comm, Launch* launch) {
  if (comm->is_aborted) return true;
  if (held_.count(comm->rank)) return false;
  launch->has_arrived = true;
  // Other GPUs get on by themselves.
  for (Comm* peer : comm->world->comms)
    for (size_t i = 0; peer && peer != comm && i < peer->launches.size(); ++i)
      if (!peer->launches[i]->has_arrived && !peer->is_gone)
        cuda_->Advance(peer->launches[i]->stream, peer->launches[i]->place);
  bool is_done = true;
  for (const auto& job : launch->jobs)
    is_done = Complete(comm, job.get()) && is_done;
  launch->is_done = is_done;
  return is_done;
}

// The job of that kind whose stream has come to it.
FakeNccl::Job* FakeNccl::Find(Comm* comm, const std::string& kind,
                              uint64_t number, int peer) {
  if (!comm) return nullptr;
  const bool is_pair = kind == "send" || kind == "receive";
  for (const auto& launch : comm->launches)
    for (const auto& job : launch->jobs)
      if (launch->has_arrived && job->number == number &&
          (is_pair ? job->kind == kind && job->peer == peer
                   : job->kind != "send" && job->kind != "receive"))
        return job.get();
  return nullptr;
}

// Elements [from, from + count) of all ranks' src.
void FakeNccl::Reduce(World* world, const std::vector<Job*>& jobs, size_t from,
                      size_t count, void* dst) {
  const choir_dtype_t dtype = DtypeOf(jobs[0]->type);
  const size_t e = choir_dtype_bytes(dtype);
  std::vector<unsigned char> out(count * e + 8);
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    int64_t whole = 0;
    for (size_t r = jobs.size(); r-- > 0;) {
      const Job* job = jobs[r];
      const bool first = r + 1 == jobs.size();
      const auto* at =
          static_cast<const unsigned char*>(job->src) + (from + i) * e;
      if (choir_dtype_is_float(dtype)) {
        double x = choir_element_load(at, dtype);
        if (job->op >= kMadeOps)
          x *=
              world->comms[r]->scalars[static_cast<size_t>(job->op - kMadeOps)];
        sum = first ? x : Combine(job->op, sum, x);
        if (dtype != CHOIR_DTYPE_F64) sum = static_cast<float>(sum);
      } else {
        int64_t x = 0;
        std::memcpy(&x, at, e);
        if (dtype == CHOIR_DTYPE_I32) x = static_cast<int32_t>(x);
        whole = first ? x
                      : static_cast<int64_t>(
                            Combine(job->op, static_cast<__int128>(whole),
                                    static_cast<__int128>(x)));
      }
    }
    if (choir_dtype_is_float(dtype))
      choir_element_store(&out[i * e], dtype, sum);
    else
      std::memcpy(&out[i * e], &whole, e);
  }
  std::memcpy(dst, out.data(), count * e);
}

// Moves a job's bytes once all who take part have come to it.
bool FakeNccl::Complete(Comm* comm, Job* job) {
  if (job->is_done) return true;
  World* world = comm->world;
  const size_t bytes = job->count * BytesOf(job->type);
  if (job->kind == "send" || job->kind == "receive") {
    const bool sends = job->kind == "send";
    Comm* peer = world->comms[static_cast<size_t>(job->peer)];
    Job* other =
        Find(peer, sends ? "receive" : "send", job->number, comm->rank);
    if (!other) return false;
    if (other->count != job->count) Misuse("a send of another size");
    if (sends)
      std::memcpy(other->dst, job->src, bytes);
    else
      std::memcpy(job->dst, other->src, bytes);
    job->is_done = other->is_done = true;
    return true;
  }
  std::vector<Job*> jobs;
  for (Comm* peer : world->comms) {
    jobs.push_back(Find(peer, job->kind, job->number, 0));
    if (!jobs.back()) return false;
    if (jobs.back()->kind != job->kind || jobs.back()->count != job->count ||
        jobs.back()->type != job->type)
      Misuse("ranks differ in a collective");
  }
  std::vector<std::vector<unsigned char>> results(jobs.size());
  for (size_t r = 0; r < jobs.size(); ++r) {
    auto& result = results[r];
    if (job->kind == "all_gather") {
      for (Job* one : jobs) {
        const auto* src = static_cast<const unsigned char*>(one->src);
        result.insert(result.end(), src, src + bytes);
      }
    } else if (job->kind == "broadcast") {
      const auto* src = static_cast<const unsigned char*>(
          jobs[static_cast<size_t>(job->peer)]->src);
      result.assign(src, src + bytes);
    } else if (job->kind != "reduce" || static_cast<int>(r) == job->peer) {
      result.resize(bytes);
      Reduce(world, jobs, job->kind == "reduce_scatter" ? r * job->count : 0,
             job->count, result.data());
    }
  }
  for (size_t r = 0; r < jobs.size(); ++r) {
    if (!results[r].empty())
      std::memcpy(jobs[r]->dst, results[r].data(), results[r].size());
    jobs[r]->is_done = true;
  }
  return true;
}

// ---- The table ----

// Begins each function that has a communicator.
#define BEGIN(symbol)                                                 \
  FakeNccl* fake = self_;                                             \
  Lock lock(fake->cuda_->lock());                                     \
  auto* comm = reinterpret_cast<Comm*>(handle);                       \
  {                                                                   \
    const int scripted = fake->Enter(symbol, comm);                   \
    if (scripted) return static_cast<choir__nccl_result_t>(scripted); \
  }

choir__nccl_library_t FakeNccl::MakeTable() {
  using Result = choir__nccl_result_t;
  using Handle = choir__nccl_comm_t;
  using Stream = choir__nccl_stream_t;
  choir__nccl_library_t table = {};
  table.ncclGetVersion = [](int* version) -> Result {
    Lock lock(self_->cuda_->lock());
    *version = self_->version_;
    return self_->Begin("ncclGetVersion");
  };
  table.ncclGetUniqueId = [](choir__nccl_id_t* id) -> Result {
    Lock lock(self_->cuda_->lock());
    std::snprintf(id->internal, sizeof(id->internal), "world %d",
                  ++self_->next_id_);
    self_->worlds_[id->internal];
    return self_->Begin("ncclGetUniqueId");
  };
  table.ncclCommInitRankConfig = [](Handle* handle, int size,
                                    choir__nccl_id_t id, int rank,
                                    choir__nccl_config_t* config) -> Result {
    FakeNccl* fake = self_;
    Lock lock(fake->cuda_->lock());
    const int scripted = fake->Begin("ncclCommInitRankConfig");
    if (scripted) return scripted;
    if (config->magic != CHOIR__NCCL_CONFIG_MAGIC || config->blocking != 0)
      fake->Misuse("a communicator that blocks");
    const int gpu = fake->cuda_->CurrentGpu();
    if (gpu < 0) fake->Misuse("ncclCommInitRankConfig without a context");
    auto found = fake->worlds_.find(id.internal);
    if (found == fake->worlds_.end()) return kInvalidArgument;
    World* world = &found->second;
    world->size = size;
    world->comms.resize(static_cast<size_t>(size));
    for (const Comm* peer : world->comms)
      if (peer && peer->gpu == gpu) return kInvalidUsage;  // a GPU twice
    fake->comms_.emplace_back();
    Comm* comm = &fake->comms_.back();
    comm->world = world;
    comm->rank = rank;
    comm->gpu = gpu;
    world->comms[static_cast<size_t>(rank)] = comm;
    *handle = reinterpret_cast<Handle>(comm);
    return kInProgress;
  };
  table.ncclCommFinalize = [](Handle handle) -> Result {
    BEGIN("ncclCommFinalize");
    for (const auto& launch : comm->launches)
      if (!launch->is_done) fake->Misuse("ncclCommFinalize with work");
    comm->is_finalized = true;
    return kInProgress;
  };
  table.ncclCommDestroy = [](Handle handle) -> Result {
    BEGIN("ncclCommDestroy");
    if (!comm->is_finalized) fake->Misuse("ncclCommDestroy before the end");
    comm->is_gone = true;
    return 0;
  };
  table.ncclCommAbort = [](Handle handle) -> Result {
    BEGIN("ncclCommAbort");
    comm->is_gone = comm->is_aborted = true;
    comm->unlaunched.clear();
    return 0;
  };
  table.ncclCommGetAsyncError = [](Handle handle, Result* state) -> Result {
    BEGIN("ncclCommGetAsyncError");
    *state = comm->state;
    if (comm->state) return 0;
    *state = kInProgress;
    for (const Comm* peer : comm->world->comms)
      if (!peer || (comm->is_finalized && !peer->is_finalized)) return 0;
    if (comm->polls > 0 && --comm->polls > 0) return 0;
    fake->Submit(comm);
    *state = 0;
    return 0;
  };
  table.ncclGetErrorString = [](Result result) -> const char* {
    return result == kInvalidUsage      ? "invalid usage"
           : result == kInvalidArgument ? "invalid argument"
           : result == 6                ? "remote process exited"
                                        : "unhandled error";
  };
  table.ncclGetLastError = [](Handle) -> const char* {
    return "the script said so\n";
  };
  table.ncclRedOpCreatePreMulSum =
      [](choir__nccl_op_t* op, void* scalar, choir__nccl_type_t type,
         choir__nccl_residence_t residence, Handle handle) -> Result {
    BEGIN("ncclRedOpCreatePreMulSum");
    if (residence != CHOIR__NCCL_HOST_IMMEDIATE) return kInvalidArgument;
    comm->scalars.push_back(choir_element_load(scalar, DtypeOf(type)));
    ++comm->open_ops;
    *op = kMadeOps + static_cast<int>(comm->scalars.size()) - 1;
    return 0;
  };
  table.ncclRedOpDestroy = [](choir__nccl_op_t, Handle handle) -> Result {
    BEGIN("ncclRedOpDestroy");
    --comm->open_ops;
    return 0;
  };
  table.ncclGroupStart = []() -> Result {
    Lock lock(self_->cuda_->lock());
    ++group_depth;
    return self_->Begin("ncclGroupStart");
  };
  table.ncclGroupEnd = []() -> Result {
    Lock lock(self_->cuda_->lock());
    --group_depth;
    const int scripted = self_->Begin("ncclGroupEnd");
    return scripted ? scripted : kInProgress;
  };
#define ADD(symbol, src_parts, dst_parts, ...)                         \
  Lock lock(self_->cuda_->lock());                                     \
  auto* comm = reinterpret_cast<Comm*>(handle);                        \
  return self_->Add(symbol, comm, stream, Job{__VA_ARGS__}, src_parts, \
                    dst_parts)
  table.ncclAllReduce = [](const void* src, void* dst, size_t count,
                           choir__nccl_type_t type, choir__nccl_op_t op,
                           Handle handle, Stream stream) -> Result {
    ADD("ncclAllReduce", 1, 1, "all_reduce", src, dst, count, type, op);
  };
  table.ncclBroadcast = [](const void* src, void* dst, size_t count,
                           choir__nccl_type_t type, int root, Handle handle,
                           Stream stream) -> Result {
    ADD("ncclBroadcast", 1, 1, "broadcast", src, dst, count, type, 0, root);
  };
  table.ncclReduce = [](const void* src, void* dst, size_t count,
                        choir__nccl_type_t type, choir__nccl_op_t op, int root,
                        Handle handle, Stream stream) -> Result {
    const size_t takes = reinterpret_cast<Comm*>(handle)->rank == root;
    ADD("ncclReduce", 1, takes, "reduce", src, dst, count, type, op, root);
  };
  table.ncclAllGather = [](const void* src, void* dst, size_t count,
                           choir__nccl_type_t type, Handle handle,
                           Stream stream) -> Result {
    const auto size = reinterpret_cast<Comm*>(handle)->world->size;
    ADD("ncclAllGather", 1, static_cast<size_t>(size), "all_gather", src, dst,
        count, type);
  };
  table.ncclReduceScatter = [](const void* src, void* dst, size_t count,
                               choir__nccl_type_t type, choir__nccl_op_t op,
                               Handle handle, Stream stream) -> Result {
    const auto size = reinterpret_cast<Comm*>(handle)->world->size;
    ADD("ncclReduceScatter", static_cast<size_t>(size), 1, "reduce_scatter",
        src, dst, count, type, op);
  };
  table.ncclSend = [](const void* src, size_t count, choir__nccl_type_t type,
                      int peer, Handle handle, Stream stream) -> Result {
    ADD("ncclSend", 1, 0, "send", src, nullptr, count, type, 0, peer);
  };
  table.ncclRecv = [](void* dst, size_t count, choir__nccl_type_t type,
                      int peer, Handle handle, Stream stream) -> Result {
    ADD("ncclRecv", 0, 1, "receive", nullptr, dst, count, type, 0, peer);
  };
  return table;
}

}  // namespace testing
}  // namespace choir
