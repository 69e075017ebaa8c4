"""Cases of tiny hybrid models, made once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from ling_cases import Case


@pytest.fixture(scope="session")
def ling_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """`ling_case(name, qtype)`: a variant of `ling_cases.VARIANTS` and its judges' numbers."""
    folder = tmp_path_factory.mktemp("ling")
    made: dict[tuple[str, str], Case] = {}

    def case(name: str, qtype: str = "F32") -> Case:
        if (name, qtype) not in made:
            made[name, qtype] = Case(name, folder, qtype)
        return made[name, qtype]

    return case


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Matrices of 64 columns are not worth a second thread's waking, least of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
