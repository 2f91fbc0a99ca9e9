"""gradwire: fewer, honest bits on the wire for data-parallel PyTorch.

`api.py` lists what there is. It is imported when it is first used: torch takes seconds, for which
`gradwire --version` need not wait.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gradwire.api import *  # noqa: F403
else:

    def __getattr__(name):
        """Find a submodule, `__all__`, or a public name; the first of these brings them all."""
        from importlib import import_module, util

        if name == "__all__" or not name.startswith("_"):
            if util.find_spec(f"{__name__}.{name}"):  # which `api` may be about to import
                return import_module(f"{__name__}.{name}")
            api = import_module(f"{__name__}.api")
            globals().update({each: getattr(api, each) for each in api.__all__})
            if name in (*api.__all__, "__all__"):
                return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
