//! The NVMe/TCP target: subsystems and controllers on reactor cores
