"""Runs inside the compile sandbox: `python triton_child.py JOB.json`. Imports the admitted module and compiles its kernels.

Every reduced-precision default of the compiler is turned off: a float32 product is a float32 product (the default would
be TF32). Writes one cubin per kernel and `report.json` beside the job.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def main(job_file: str) -> int:
    job = json.loads(Path(job_file).read_text())
    folder = Path(job_file).parent
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location("candidate", folder / "candidate.py")
    if spec is None or spec.loader is None:
        return 3
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report: dict[str, Any] = {"triton": triton.__version__, "kernels": []}
    for number, kernel in enumerate(job["kernels"]):
        function = getattr(module, kernel["name"])
        names = list(function.arg_names)
        attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in kernel["divisible"]}
        source = ASTSource(function, kernel["signature"], kernel["constants"], attributes)
        options = {
            "num_warps": kernel["num_warps"],
            "num_stages": kernel["num_stages"],
            "num_ctas": kernel["num_ctas"],
            "enable_fp_fusion": True,
        }
        if not job["tf32"]:
            options |= {"allowed_dot_input_precisions": ("ieee", "tf32x3"), "default_dot_input_precision": "ieee"}
        built = triton.compile(source, target=GPUTarget("cuda", job["arch"], 32), options=options)
        meta = built.metadata
        (folder / f"{number}.cubin").write_bytes(built.asm["cubin"])
        report["kernels"].append(
            {
                "name": kernel["name"],
                "symbol": meta.name,
                "file": f"{number}.cubin",
                "shared": int(meta.shared),
                "block": int(meta.num_warps) * 32,
                "num_ctas": int(meta.num_ctas),
                "global_scratch": int(meta.global_scratch_size),
                "global_scratch_align": int(meta.global_scratch_align),
                "profile_scratch": int(meta.profile_scratch_size),
                "reduced_precision_dot": "tf32" in built.asm["ttgir"] and "inputPrecision = tf32" in built.asm["ttgir"],
            }
        )
    (folder / "report.json").write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
