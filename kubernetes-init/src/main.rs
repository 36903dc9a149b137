mod service;
mod supervisor;
fn main() {}
