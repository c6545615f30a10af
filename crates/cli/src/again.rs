//! The command that was given, to be given again with other input: what an error suggests must lose none of its options.

use std::ffi::OsString;
use std::path::Path;

/// The command in one line of a shell, with standard input in place of `file`, read in this format.
pub(crate) fn from_pipe(file: &Path, format: &str) -> String {
    rewritten(std::env::args_os().skip(1), file, format)
}

fn rewritten(arguments: impl Iterator<Item = OsString>, file: &Path, format: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut arguments = arguments.peekable();
    let mut file_at = None;
    while let Some(argument) = arguments.next() {
        let word = argument.to_string_lossy();
        if word == "--format" {
            arguments.next();
        } else if !word.starts_with("--format=") {
            // The last one that says so: the database comes before it.
            if argument == file.as_os_str() {
                file_at = Some(words.len());
            }
            words.push(quoted(&word));
        }
    }
    let input = ["-".to_owned(), "--format".to_owned(), format.to_owned()];
    match file_at {
        Some(at) => _ = words.splice(at..=at, input),
        None => words.extend(input),
    }
    format!("sapwood {}", words.join(" "))
}

/// A word of a shell's command.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./=:,@%+-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_lost_and_words_stay_words() {
        let again = |command: &str, file: &str| {
            rewritten(command.split('|').map(OsString::from), Path::new(file), "tsv")
        };
        assert_eq!(
            again("load|ships.db|my ships.gz|-k|my ships|--key-file|k", "my ships.gz"),
            "sapwood load ships.db - --format tsv -k 'my ships' --key-file k"
        );
        assert_eq!(
            again("--key-file|k|load|it's|x.gz|--format|csv|--skip-bad", "x.gz"),
            r"sapwood --key-file k load 'it'\''s' - --format tsv --skip-bad"
        );
        assert_eq!(again("load|x|x|--format=csv", "x"), "sapwood load x - --format tsv");
        assert_eq!(again("load|x.db", "-"), "sapwood load x.db - --format tsv");
        assert_eq!(again("load|x.db|-", "-"), "sapwood load x.db - --format tsv");
    }
}
