//! Writes the stub with the docstrings of `src` into `OUT_DIR`, where a wheel takes it from.

use std::collections::HashMap;
use std::path::Path;
use std::{env, fs};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, ImplItem, Item, Lit, Meta, Token, Type};

const STUB: &str = "../../python/blockyard/_core.pyi";

/// Docstrings by name: `Class`, `Class.verb` or `function`.
type Docs = HashMap<String, String>;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed={STUB}");
    let mut docs = Docs::new();
    for file in fs::read_dir("src").expect("src") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("a source");
        collect(syn::parse_file(&text).expect("Rust").items, &mut docs);
    }
    let stub = fs::read_to_string(STUB).expect(STUB);
    let folder = env::var("OUT_DIR").expect("OUT_DIR");
    fs::write(Path::new(&folder).join("_core.pyi"), merge(&stub, &docs)).expect("OUT_DIR");
}

fn collect(items: Vec<Item>, docs: &mut Docs) {
    let note = |docs: &mut Docs, name: String, attributes: &[Attribute]| {
        let lines = attributes.iter().filter_map(|one| match &one.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => text(&pair.value),
            _ => None,
        });
        let lines: Vec<String> = lines
            .map(|line| line.strip_prefix(' ').unwrap_or(&line).to_owned())
            .collect();
        if !lines.is_empty() {
            docs.insert(name, lines.join("\n"));
        }
    };
    for item in items {
        match item {
            Item::Fn(verb) if has(&verb.attrs, "pyfunction") => {
                note(docs, verb.sig.ident.to_string(), &verb.attrs);
            }
            Item::Struct(class) if has(&class.attrs, "pyclass") => {
                for field in &class.fields {
                    if let Some(name) = &field.ident {
                        note(docs, format!("{}.{name}", class.ident), &field.attrs);
                    }
                }
                note(docs, class.ident.to_string(), &class.attrs);
            }
            Item::Impl(block) if has(&block.attrs, "pymethods") => {
                let Type::Path(class) = *block.self_ty else {
                    continue;
                };
                let class = &class.path.segments[0].ident;
                for verb in block.items {
                    if let ImplItem::Fn(verb) = verb {
                        note(docs, format!("{class}.{}", verb.sig.ident), &verb.attrs);
                    }
                }
            }
            Item::Macro(made) if made.mac.path.is_ident("create_exception") => {
                let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
                let words = made.mac.parse_body_with(parser).expect("an exception");
                if let (Expr::Path(name), Some(text)) = (&words[1], text(&words[3])) {
                    docs.insert(name.path.segments[0].ident.to_string(), text);
                }
            }
            Item::Mod(inner) => collect(inner.content.unwrap_or_default().1, docs),
            _ => {}
        }
    }
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|one| one.path().is_ident(name))
}

fn text(of: &Expr) -> Option<String> {
    match of {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// The stub with a docstring in each class and verb, as `ruff format` lays out their heads. Of
/// overloads the last one has it; magic verbs have none.
fn merge(stub: &str, docs: &Docs) -> String {
    let mut class = String::new();
    let mut names = Vec::new();
    for line in stub.lines() {
        let words = line
            .trim_start()
            .split(['(', ':'])
            .next()
            .unwrap_or_default();
        let own = !line.starts_with(' ');
        names.push(match words.split_once(' ') {
            Some(("class", name)) => {
                class = format!("{name}.");
                name.to_owned()
            }
            Some(("def", name)) if own => name.to_owned(),
            Some(("def", name)) if !name.starts_with("__") => format!("{class}{name}"),
            _ => String::new(),
        });
    }
    let mut made = String::new();
    let mut wanted = None;
    for (at, line) in stub.lines().enumerate() {
        if !names[at].is_empty() && !names[at + 1..].contains(&names[at]) {
            wanted = docs.get(&names[at]);
        }
        let head = line.strip_suffix(" ...").unwrap_or(line);
        made += match wanted {
            Some(_) if head.ends_with(':') => head,
            _ => line,
        };
        made.push('\n');
        if head.ends_with(':')
            && let Some(text) = wanted.take()
        {
            let indent = line.len() - line.trim_start().len() + 4;
            made += &literal(text, &" ".repeat(indent));
        }
    }
    made
}

fn literal(text: &str, indent: &str) -> String {
    let margin = format!("\n{indent}");
    let text = text.trim_end().replace('\\', r"\\").replace('\n', &margin);
    let end = if text.contains('\n') { &margin } else { "" };
    format!("{indent}\"\"\"{text}{end}\"\"\"\n\n")
}
