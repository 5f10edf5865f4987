// The candidate's side of a measurement: allocate, launch, free, n times, by the monotonic clock.
//
// Every timed call gets fresh outputs and workspace from posix_memalign(64), exactly what torch's CPU allocator
// does for eager, so neither side owns a warm buffer. Inputs rotate over the judge's sets. Calls [keep_from,
// keep_to) have their outputs copied into the judge's slots with the clock stopped. An in-place operator gets its
// inputs restored before every call, with the clock stopped too. What this reports is a claim: the judge holds
// its own clock outside.
#include "forge_abi.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

extern "C" {

typedef int (*launch_fn)(const forge_args*);
typedef int (*prepare_fn)(const forge_args*, void*);

struct forge_loop {
  int32_t n_sets, n_slots, n_inputs, n_outputs, n_scalars, n_mutated, threads, zeroed;
  const forge_tensor* inputs;   // n_sets * n_inputs, data in the judge's read-only arena
  const forge_tensor* outputs;  // n_outputs, data unused
  const int64_t* output_bytes;  // bytes of each output's window
  const forge_scalar* scalars;
  const int32_t* mutated;       // indices into the inputs
  const int64_t* mutated_bytes;
  void* const* slots;           // n_slots * (n_outputs + n_mutated) destinations in the judge's output arena
  int64_t workspace_bytes, workspace_alignment;
  int64_t prepared_bytes;
  launch_fn launch;
  prepare_fn prepare;
};

enum { FORGE_MAX = 64, FORGE_NO_MEMORY = -1000001 };

// What the process was doing when a signal came; read by the judge after the process is gone.
struct forge_status {
  int64_t signal, address, phase, call;
};
static forge_status* status_page = nullptr;

static int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

static void on_signal(int number, siginfo_t* info, void*) {
  if (status_page) {
    status_page->signal = number;
    status_page->address = int64_t(info->si_addr);
  }
  signal(number, SIG_DFL);
  raise(number);
}

// Note fatal signals with their address in the judge's page before dying of them.
int forge_watch_signals(void* page) {
  status_page = static_cast<forge_status*>(page);
  stack_t stack = {};
  stack.ss_size = 64 << 10;
  stack.ss_sp = malloc(stack.ss_size);
  if (!stack.ss_sp || sigaltstack(&stack, nullptr)) return -1;
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS}) sigaction(number, &action, nullptr);
  return 0;
}

static void* allocate(int64_t bytes, int64_t alignment) {
  void* memory = nullptr;
  if (bytes <= 0) return nullptr;
  return posix_memalign(&memory, alignment < 64 ? 64 : size_t(alignment), size_t(bytes)) ? nullptr : memory;
}

static void nothing(void*) {}

// Start the whole OpenMP team of one runtime (nullptr: the one already loaded), so that a process that may not
// create threads any more still has them. Returns 0, or -1 when that runtime is not there.
int forge_warm_openmp(const char* path, int threads) {
  void* handle = dlopen(path && *path ? path : "libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!handle) return -1;
  typedef void (*parallel_fn)(void (*)(void*), void*, unsigned, unsigned);
  parallel_fn parallel = parallel_fn(dlsym(handle, "GOMP_parallel"));
  if (!parallel) return -1;
  parallel(nothing, nullptr, unsigned(threads), 0);
  return 0;
}

static void fill_args(const forge_loop* loop, int set, forge_args* args, forge_tensor* inputs, forge_tensor* outputs) {
  memset(args, 0, sizeof(*args));
  memcpy(inputs, loop->inputs + int64_t(set) * loop->n_inputs, sizeof(forge_tensor) * size_t(loop->n_inputs));
  memcpy(outputs, loop->outputs, sizeof(forge_tensor) * size_t(loop->n_outputs));
  args->abi = FORGE_ABI;
  args->n_inputs = loop->n_inputs;
  args->n_outputs = loop->n_outputs;
  args->n_scalars = loop->n_scalars;
  args->inputs = inputs;
  args->outputs = outputs;
  args->scalars = loop->scalars;
  args->workspace_bytes = loop->workspace_bytes;
  args->threads = loop->threads;
}

// One call into the judge's own buffers: outputs (and written inputs) in slot `slot`, the given workspace.
// prepared: memory for forge_prepare or nullptr. Returns what forge_launch returned.
int forge_once(const forge_loop* loop, int set, int slot, void* workspace, void* prepared) {
  forge_args args;
  forge_tensor inputs[FORGE_MAX * 4], outputs[FORGE_MAX];
  fill_args(loop, set, &args, inputs, outputs);
  void* const* destinations = loop->slots + int64_t(slot) * (loop->n_outputs + loop->n_mutated);
  for (int i = 0; i < loop->n_outputs; i++) outputs[i].data = destinations[i];
  for (int i = 0; i < loop->n_mutated; i++) inputs[loop->mutated[i]].data = destinations[loop->n_outputs + i];
  args.workspace = loop->workspace_bytes ? workspace : nullptr;
  if (status_page) status_page->phase = 1;
  if (prepared) {
    int code = loop->prepare(&args, prepared);
    if (code) return code > 0 ? -code : code;
    args.prepared = prepared;
    args.prepared_bytes = loop->prepared_bytes;
  }
  if (status_page) status_page->phase = 2;
  if (loop->workspace_bytes && loop->zeroed) memset(workspace, 0, size_t(loop->workspace_bytes));
  int code = loop->launch(&args);
  if (status_page) status_page->phase = 0;
  return code;
}

// n calls over the sets from `first` on. ns: clocked time, prepare_ns: time of forge_prepare before the clock.
// prepared: one buffer per set or nullptr. scratch: one writable copy per mutated input. Returns the first code
// that was not 0, or 0.
int forge_batch(const forge_loop* loop, int n, int first, int keep_from, int keep_to, void* const* prepared,
                void* const* scratch, int64_t* ns, int64_t* prepare_ns) {
  forge_args args;
  forge_tensor inputs[FORGE_MAX * 4], outputs[FORGE_MAX];
  *ns = *prepare_ns = 0;
  if (prepared) {
    int64_t start = now_ns();
    for (int set = 0; set < loop->n_sets; set++) {
      fill_args(loop, set, &args, inputs, outputs);
      int code = loop->prepare(&args, prepared[set]);
      if (code) return code > 0 ? -code : code;
    }
    *prepare_ns = now_ns() - start;
  }
  int64_t spent = 0, start = now_ns();
  int code = 0;
  if (status_page) status_page->phase = 3;
  for (int call = 0; call < n && code == 0; call++) {
    int set = (first + call) % loop->n_sets;
    if (loop->n_mutated) spent += now_ns() - start;
    fill_args(loop, set, &args, inputs, outputs);
    for (int i = 0; i < loop->n_mutated; i++) {
      forge_tensor* input = &inputs[loop->mutated[i]];
      memcpy(scratch[i], input->data, size_t(loop->mutated_bytes[i]));
      input->data = scratch[i];
    }
    if (loop->n_mutated) start = now_ns();
    if (prepared) {
      args.prepared = prepared[set];
      args.prepared_bytes = loop->prepared_bytes;
    }
    for (int i = 0; i < loop->n_outputs; i++) {
      outputs[i].data = allocate(loop->output_bytes[i], 64);
      if (!outputs[i].data && loop->output_bytes[i] > 0) return FORGE_NO_MEMORY;
    }
    if (loop->workspace_bytes) {
      args.workspace = allocate(loop->workspace_bytes, loop->workspace_alignment);
      if (!args.workspace) return FORGE_NO_MEMORY;
      if (loop->zeroed) memset(args.workspace, 0, size_t(loop->workspace_bytes));
    }
    code = loop->launch(&args);
    if (call >= keep_from && call < keep_to) {
      spent += now_ns() - start;
      void* const* destinations = loop->slots + int64_t(call - keep_from) * (loop->n_outputs + loop->n_mutated);
      for (int i = 0; i < loop->n_outputs; i++) memcpy(destinations[i], outputs[i].data, size_t(loop->output_bytes[i]));
      for (int i = 0; i < loop->n_mutated; i++)
        memcpy(destinations[loop->n_outputs + i], scratch[i], size_t(loop->mutated_bytes[i]));
      start = now_ns();
    }
    if (loop->workspace_bytes) free(args.workspace);
    for (int i = 0; i < loop->n_outputs; i++) free(outputs[i].data);
  }
  *ns = spent + now_ns() - start;
  if (status_page) status_page->phase = 0;
  return code;
}

}  // extern "C"
