//! The `sapwood` program. All of it is in the library of this crate, where tests and fuzzers reach it.

fn main() -> std::process::ExitCode {
    sapwood_cli::run()
}
