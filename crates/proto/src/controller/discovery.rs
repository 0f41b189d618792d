//! The discovery log page.
