//! What is on the screen, at several sizes.
