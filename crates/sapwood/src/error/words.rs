//! Parts of messages that depend on what is in the error.

/// What the target of a backup is called that is a stream.
pub(crate) const THE_STREAM: &str = "the stream";

/// How long a value may be, and how long with a larger memory budget.
pub(super) fn at_most(max: usize, most: usize) -> String {
    let with_more = if most > max {
        format!(" with its memory budget, {most} with a larger one,")
    } else {
        String::new()
    };
    format!("at most {max} bytes{with_more}")
}

/// What comes of repeating that for which a target was called. What reads is no backup, or has nothing yet to go on with.
pub(super) fn repeated(operation: &str, target: &str) -> &'static str {
    if operation == "write" && target != THE_STREAM {
        "repeat it, and it goes on from there"
    } else {
        "repeat it"
    }
}

#[cfg(test)]
mod tests {
    use crate::Error;
    use std::io;
    use std::sync::Arc;

    #[test]
    fn only_what_goes_on_is_said_to_go_on() {
        for (operation, target, goes_on) in
            [("write", "backups", true), ("read", "backups", false), ("write", super::THE_STREAM, false)]
        {
            let source = Arc::new(io::Error::other("no"));
            let error =
                Error::BackupTarget { target: target.into(), operation, name: "log-1".into(), source };
            assert_eq!(
                error.to_string().ends_with("repeat it, and it goes on from there"),
                goes_on,
                "{error}"
            );
        }
    }

    #[test]
    fn more_memory_is_named_where_it_helps() {
        let told = |max, most| Error::ValueTooLong { len: 30, max, most }.to_string();
        let with = "at most 10 bytes with its memory budget, 20 with a larger one, in this database";
        assert!(told(10, 20).ends_with(with), "{}", told(10, 20));
        assert!(told(20, 20).ends_with("; values have at most 20 bytes in this database"));
    }
}
