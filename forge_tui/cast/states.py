"""Why a call was not served, and the table of states a model may run in.

REASONS repeats the list of native/table.h in order (a test compares them). STATES is what the documentation and
`Installed.explain` print: a later way in (module forward, inside torch.compile, CUDA graphs) adds its column here.
"""

from __future__ import annotations

from dataclasses import dataclass

REASONS: dict[str, str] = {
    "shape": "a size outside the card's",
    "stride": "other strides (transposed, sliced, expanded or another memory format)",
    "dtype": "another dtype",
    "device": "another device",
    "alignment": "memory less aligned than the card's",
    "aliasing": "tensors share memory in another way",
    "scalar": "another value of a non-tensor argument",
    "arguments": "other kinds or numbers of arguments",
    "gradients": "gradients are wanted",
    "flags": "other numerics flags (deterministic, matmul precision)",
    "inference_tensor": "an inference tensor written or prepared outside inference mode",
    "functorch": "inside vmap, grad, jvp or functionalization",
    "python_mode": "a fake tensor, a tensor subclass with its own dispatch, or another tool's dispatch mode",
    "tracing": "inside torch.jit.trace",
    "math_bits": "a lazy conjugate, negative or zero tensor",
    "other_state": "another dispatch state (meta, sparse, quantized, nested)",
    "undiagnosed": "no entry fits (details only in the first forward and in the accept test)",
    "declined": "the kernel declined the call",
    "disabled": "the entry was switched off after an error",
    "no_memory": "scratch memory of this size can't be had",
}


@dataclass(frozen=True)
class State:
    """One state and what an installed cast does in it. served: kernels may run; else eager runs, counted as `reason`."""

    name: str
    served: bool
    reason: str = ""
    note: str = ""


EAGER_HOOKS = "eager hooks"  # the one way in that exists so far
STATES: tuple[State, ...] = (
    State("no_grad, inference_mode, eval", True),
    State("grad mode, no input wants gradients", True),
    State("autograd, checkpoint", False, "gradients"),
    State("forward-mode AD", False, "gradients"),
    State("autocast", True, "", "the call after the cast is the one that matches"),
    State("vmap, func.grad, func.jvp", False, "functorch"),
    State("FakeTensor, make_fx, export, other TorchDispatchMode", False, "python_mode"),
    State("meta tensors", False, "other_state"),
    State(
        "torch.jit.trace", True, "tracing", "the trace records the operator; a kernel may compute the example's values"
    ),
    State("negative and conjugate views", False, "math_bits"),
    State("torch.compile", False, "", "the cast steps aside while torch compiles; compiled graphs run as compiled"),
    State("other threads", True, "", "in each thread that runs an installed module's forward"),
    State("transposed, sliced, expanded inputs", False, "stride", "unless the card was captured so"),
    State("deepcopy, pickle of an installed model", True, "", "the copy is a plain model without the cast"),
)
