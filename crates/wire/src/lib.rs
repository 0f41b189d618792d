//! NVMe base, NVM, fabrics and TCP structures as bytes: no_std, no unsafe, no I/O
