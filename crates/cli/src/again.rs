//! The command that was given, to be given again with other input: what an error suggests must lose none of its options.

use crate::arguments::Arguments;
use clap::CommandFactory;
use std::collections::HashSet;
use std::ffi::OsString;

/// The command in one line of a shell, with standard input in place of its file, read in this format.
pub(crate) fn from_pipe(format: &str) -> String {
    rewritten(std::env::args_os().skip(1), format)
}

fn rewritten(arguments: impl Iterator<Item = OsString>, format: &str) -> String {
    let takes_value = options_with_values();
    let mut words: Vec<String> = Vec::new();
    let mut arguments = arguments;
    let (mut plain, mut file_at, mut only_plain) = (0, None, None);
    while let Some(argument) = arguments.next() {
        let word = argument.to_string_lossy();
        let is_option = only_plain.is_none() && word.starts_with('-') && word != "-";
        if is_option && word == "--" {
            only_plain = Some(words.len());
        } else if is_option && (word == "--format" || word.starts_with("--format=")) {
            if word == "--format" {
                arguments.next();
            }
            continue;
        } else if !is_option {
            plain += 1;
            if plain == FILE {
                file_at = Some(words.len());
            }
        }
        words.push(quoted(&word));
        if is_option && takes_value.contains(&*word) {
            words.extend(arguments.next().map(|value| quoted(&value.to_string_lossy())));
        }
    }
    match file_at {
        Some(at) => words[at] = "-".to_owned(),
        None => {
            file_at = Some(words.len());
            words.push("-".to_owned());
        }
    }
    // Behind the file, unless no options may come there.
    let at = only_plain.or(file_at.map(|at| at + 1)).unwrap_or(words.len());
    words.splice(at..at, ["--format".to_owned(), format.to_owned()]);
    format!("sapwood {}", words.join(" "))
}

/// Which of the words that are no options is the file: `load DB FILE`.
const FILE: usize = 3;

/// Options whose value is the next word, as they are written: `-k`, `--keyspace`.
fn options_with_values() -> HashSet<String> {
    let program = Arguments::command();
    let load = program.find_subcommand("load").into_iter().flat_map(|load| load.get_arguments());
    let options = program.get_arguments().chain(load).filter(|option| option.get_action().takes_values());
    let names = options.flat_map(|option| {
        [option.get_long().map(|name| format!("--{name}")), option.get_short().map(|name| format!("-{name}"))]
    });
    names.flatten().collect()
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
        let again = |command: &str| rewritten(command.split('|').map(OsString::from), "tsv");
        assert_eq!(
            again("load|ships.db|my ships.gz|-k|my ships|--key-file|k"),
            "sapwood load ships.db - --format tsv -k 'my ships' --key-file k"
        );
        assert_eq!(
            again("--key-file|k|load|it's|x.gz|--format|csv|--skip-bad"),
            r"sapwood --key-file k load 'it'\''s' - --format tsv --skip-bad"
        );
        assert_eq!(again("load|x|x|--format=csv"), "sapwood load x - --format tsv");
        assert_eq!(again("load|x.db"), "sapwood load x.db - --format tsv");
        assert_eq!(again("load|x.db|-"), "sapwood load x.db - --format tsv");
    }

    #[test]
    fn the_value_of_an_option_is_not_the_file() {
        let again = |command: &str| rewritten(command.split('|').map(OsString::from), "tsv");
        for (command, rest) in [
            ("load|ships.db|ships|-k|ships", "load ships.db - --format tsv -k ships"),
            ("load|ships.db|ships|-kships", "load ships.db - --format tsv -kships"),
            ("load|-k|ships|ships.db|ships|--skip-bad", "load -k ships ships.db - --format tsv --skip-bad"),
            ("--log|info|load|--batch=7|ships|ships", "--log info load --batch=7 ships - --format tsv"),
            ("load|ships.db|--keyspace|--|-", "load ships.db --keyspace -- - --format tsv"),
            ("load|--format|csv|--|-ships|ships", "load --format tsv -- -ships -"),
        ] {
            assert_eq!(again(command), format!("sapwood {rest}"), "{command}");
        }
    }
}
