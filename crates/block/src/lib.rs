//! The namespace contract: operations, errors and the conformance suite
