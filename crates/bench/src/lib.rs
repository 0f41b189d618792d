//! Load generator, histograms and the six-pattern comparison
