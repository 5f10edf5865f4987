"""Built-in CPU kernels (tier T3, C++): what proposes candidates without a key and without a network.

What this room promises:
- Every draft is self-contained C++ that includes only "card.h", needs no instruction set at compile time (the vector
  width is a tunable and GCC splits what the target lacks) and no -ffast-math: vectors by construction, reductions in a
  fixed order, so a kernel gives the same bits on every run with the same thread count.
- `fits` looks at the variant key alone and says why when it refuses; a recipe never guesses at strides or dtypes.
- A draft that can't serve a call returns a positive number before it writes anything.
- `mutate` never returns a candidate that was seen, and ends.
- CUDA recipes (`cuda_*`, tier T1) serve keys whose tensors are all on one CUDA device: device code that includes only
  "card.h", exact sizes as constants, float32 sums in a fixed order, and a launch plan for `forge_tui.launch`.

What it may not import: anything but `records` and the standard library.
"""
