//! NVMe over Fabrics as sans-I/O state machines
