//! Rust source as tokens, so that rules are not fooled by strings and comments.
//!
//! Invariant: groups are flattened in order, with their brackets as tokens; a file that does not lex gives no tokens
//! (the compiler tells of it better).

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One identifier, mark or literal.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

pub(crate) fn of(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    if let Ok(stream) = text.parse() {
        flatten(stream, &mut tokens);
    }
    tokens
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        if let TokenTree::Group(group) = tree {
            let (open, close) = match group.delimiter() {
                Delimiter::Brace => ("{", "}"),
                Delimiter::Bracket => ("[", "]"),
                Delimiter::Parenthesis => ("(", ")"),
                Delimiter::None => ("", ""),
            };
            let mut push = |text: &str, line| tokens.push(Token { text: text.to_owned(), line });
            push(open, group.span_open().start().line);
            flatten(group.stream(), tokens);
            let mut push = |text: &str, line| tokens.push(Token { text: text.to_owned(), line });
            push(close, group.span_close().start().line);
        } else {
            tokens.push(Token { line: tree.span().start().line, text: tree.to_string() });
        }
    }
}

/// The texts of up to `N` tokens from `at` on; empty past the end.
pub(crate) fn window<const N: usize>(tokens: &[Token], at: usize) -> [&str; N] {
    std::array::from_fn(|index| tokens.get(at + index).map_or("", |token| token.text.as_str()))
}
