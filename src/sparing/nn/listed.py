"""Lists of modules that know what they hold."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

from torch import nn

M = TypeVar("M", bound=nn.Module)


class Listed(nn.ModuleList, Generic[M]):
    """Modules of one kind. Torch's own list would hand them out as any module."""

    def __init__(self, modules: Iterable[M] = ()) -> None:
        super().__init__(modules)

    def __iter__(self) -> Iterator[M]:
        return cast("Iterator[M]", super().__iter__())
