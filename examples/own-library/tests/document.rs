//! `docs/adding-a-library.md` shows this crate's files: each snippet must occur in the file it names.

const DOCUMENT: &str = include_str!("../../../docs/adding-a-library.md");

const FILES: [(&str, &str); 8] = [
    ("Cargo.toml", include_str!("../Cargo.toml")),
    ("src/lib.rs", include_str!("../src/lib.rs")),
    ("src/op.rs", include_str!("../src/op.rs")),
    ("src/actor.rs", include_str!("../src/actor.rs")),
    ("src/host.rs", include_str!("../src/host.rs")),
    ("src/cuda.rs", include_str!("../src/cuda.rs")),
    ("src/kernels.cu", include_str!("../src/kernels.cu")),
    ("tests/rowwise.rs", include_str!("rowwise.rs")),
];

/// File and text of each snippet. The line before a snippet is the file's name: "`src/op.rs`:".
fn snippets(document: &str) -> Vec<(String, String)> {
    let mut lines = document.lines();
    let (mut before, mut snippets) = ("", Vec::new());
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let file = before.strip_prefix('`').and_then(|name| name.strip_suffix("`:"));
            let file = file.unwrap_or_else(|| panic!("no file is named before the snippet that follows {before:?}"));
            let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            snippets.push((file.to_string(), text.join("\n")));
        }
        before = line;
    }
    snippets
}

/// Whether the lines of `snippet` are whole lines of `file`.
fn occurs(file: &str, snippet: &str) -> bool {
    format!("\n{file}\n").contains(&format!("\n{snippet}\n"))
}

#[test]
fn each_snippet_occurs_in_its_file() {
    let snippets = snippets(DOCUMENT);
    for (name, text) in FILES {
        let mut of_this = snippets.iter().filter(|(file, _)| file == name).peekable();
        assert!(of_this.peek().is_some(), "the document shows nothing of {name}");
        for (_, snippet) in of_this {
            assert!(occurs(text, snippet), "this is not in {name}:\n{snippet}");
        }
    }
    for (file, _) in &snippets {
        assert!(
            FILES.iter().any(|(name, _)| name == file),
            "the document names {file}, which is no file of this crate"
        );
    }
}

#[test]
fn a_changed_snippet_is_noticed() {
    let document = "Text.\n\n`src/a.rs`:\n```rust\nfn a() {\n}\n```\n";
    let found = snippets(document);
    assert_eq!(found, [("src/a.rs".to_string(), "fn a() {\n}".to_string())]);
    assert!(occurs("use b;\nfn a() {\n}\n", &found[0].1));
    assert!(!occurs("use b;\nfn a() {\n    b();\n}\n", &found[0].1));
    assert!(!occurs("pub fn a() {\n}\n", &found[0].1));
}
