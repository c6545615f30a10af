//! Signals that whoever started the program has had ignored: the end of the session under `nohup`, Ctrl-C in jobs that a script has in
//! the background.

use libc::c_int;

/// Those of them that are ignored now.
pub(crate) fn signals() -> Vec<c_int> {
    [libc::SIGHUP, libc::SIGINT].into_iter().filter(|signal| is_ignored(*signal)).collect()
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: for the struct, of integers and addresses, all zeros is a valid value. Without a new action the call only fills it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Ignores these.
pub(crate) fn ignore(signals: &[c_int]) {
    for signal in signals {
        // SAFETY: an ignored signal runs no code of this program.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}
