//! The NVMe/TCP host: discovery, controllers, remote namespaces
