"""Runs launch plans v1 on an NVIDIA device through the driver alone: no torch, no CUDA toolkit, no third package.

What this room promises:
- Nothing is launched before the plan was checked against the binary's own parameter list (`cuFuncGetParamInfo`).
- Faults of a candidate, of the machine and of this program stay apart: every entry point returns a `Problem` or works.
- Work goes to the stream that the caller names, and only there; nothing synchronises unless it is asked to.
- Memory belongs to the caller. This room allocates only what a caller asks `Device.allocate` for.
- It uses the device's primary context, so torch or cupy in the same process share it.
- Packing and plan checks are pure and need no device.

Order of use: `driver.load` -> `Device.open` -> `load_program` -> `Program.bind` -> `Call.launch` or `capture`.
What it may not import: anything but `records` and the standard library.
"""
