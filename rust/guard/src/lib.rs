//! `#[guarded]` is for the functions that Python calls. The body of each that returns a `PyResult` runs
//! in `crate::gil::guard`, which turns a panic into an error. `PyO3` alone would raise a
//! `BaseException`, which callers do not catch. One word above an `impl` covers all of its verbs, so
//! that none is forgotten. R2-8

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

/// Above a function, or above the `#[pymethods]` of an `impl`.
#[proc_macro_attribute]
pub fn guarded(_words: TokenStream, item: TokenStream) -> TokenStream {
    let mut out: Vec<TokenTree> = Vec::new();
    let (mut inside, mut fails) = (false, false);
    for tree in item {
        match &tree {
            TokenTree::Ident(word) if word.to_string() == "fn" => (inside, fails) = (true, false),
            TokenTree::Ident(word) if word.to_string() == "PyResult" => fails = true,
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                // The body of a function, or the functions of an `impl`.
                let inner = match (inside, fails) {
                    (true, true) => wrapped(body),
                    (true, false) => body.stream(),
                    (false, _) => guarded(TokenStream::new(), body.stream()),
                };
                let mut group = Group::new(Delimiter::Brace, inner);
                group.set_span(body.span());
                out.push(TokenTree::Group(group));
                inside = false;
                continue;
            }
            _ => {}
        }
        out.push(tree);
    }
    out.into_iter().collect()
}

/// `crate::gil::guard(move || { … })`
fn wrapped(body: &Group) -> TokenStream {
    let call: TokenStream = "crate::gil::guard".parse().unwrap_or_default();
    let word = TokenTree::Ident(Ident::new("move", Span::call_site()));
    let bars: TokenStream = "||".parse().unwrap_or_default();
    let act = [word].into_iter().collect::<TokenStream>();
    let act = [act, bars, TokenTree::Group(body.clone()).into()];
    let act = Group::new(Delimiter::Parenthesis, act.into_iter().collect());
    [call, TokenTree::Group(act).into()].into_iter().collect()
}
