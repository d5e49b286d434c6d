"""Results are the same to the last bit for any number of threads."""

import pytest
import torch

from tests.ops.cuda_on_cpu.cases import CASES, inputs, results


@pytest.mark.parametrize("name", CASES)
def test_many_threads_agree_with_one(name):
    function, arguments = inputs(CASES[name])
    before, outputs = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        outputs.append(results(function, arguments))
    torch.set_num_threads(before)
    assert any(x.any() for x in outputs[0])
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=0, atol=0, equal_nan=True)
