//! The steps of a request before it is forwarded: its route, its client, and what its limits decide.

pub mod route;
pub mod descriptors;
pub mod identify;
pub mod forward_auth;
pub mod resolve;
pub mod decide;
