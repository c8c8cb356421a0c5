"""The release in the hands of those who load it: transformers gives the model's own logits. Run by `make test-hf`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, OutputLayout, mapping, run
from tests.corpus import DATA, LLAMA_RUN

pytestmark = pytest.mark.hf


def test_a_published_release_gives_the_models_logits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    layout = OutputLayout(map=mapping("llama"), hf=str(DATA / "llama-hf"))
    published = run(Choice(str(LLAMA_RUN), step=10, layout=layout), tmp_path / "registry", "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(published.path)
    with torch.no_grad():
        logits = model(torch.arange(12)[None]).logits.numpy()
    expected = np.load(DATA / "llama-hf" / "logits.npy")
    np.testing.assert_allclose(logits.reshape(expected.shape), expected, atol=1e-5, rtol=0)
