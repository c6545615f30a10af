//! The `sapwood-lab` program. All of it is in the library of this crate, where tests reach it.

fn main() -> std::process::ExitCode {
    lab::run()
}
