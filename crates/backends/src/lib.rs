//! Namespaces: null, mem, file, stripe, and decorators
