# shellcheck shell=bash
# ./dev import-check: exported models of PyTorch, run here and there. Sourced by dev.
import_check() {
  local venv=$here/build/import-venv python=${GRADUAL_PYTHON:-}
  need python3:python3 unzip:unzip
  export PYTHONDONTWRITEBYTECODE=1
  if [[ -z $python ]]; then
    python=$venv/bin/python
    if ! "$python" -c 'import torch, torchvision, timm, transformers' 2>/dev/null; then
      say "installing PyTorch and the models' packages in build/import-venv, once"
      rm -rf "$venv"
      { python3 -m venv "$venv" || { (need ensurepip:python3-venv) && python3 -m venv "$venv"; }; } &&
        "$venv/bin/pip" install --quiet --retries 2 torch torchvision timm transformers safetensors ||
        fail "import-check: pip could not install torch, torchvision, timm, transformers and safetensors"
    fi
  fi
  configure_bench
  compile "$tree" gradual-import-check
  exec "$python" "$here/bench/import_check/import_check.py" --program "$here/build/$tree/bench/gradual-import-check" "$@"
}
