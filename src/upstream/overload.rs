//! Overload control: which requests pass if not all can be served, and how many a server should get. Pure: it has neither a
//! clock nor I/O, and every measurement is an argument.

pub mod admission;
pub mod gradient;
pub mod level;
#[cfg(test)]
mod tests;
