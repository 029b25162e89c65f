//! Tests of what the path of a request says about its body.

use super::*;

fn read_by(api: Api, body: &str) -> Inspected {
    let pointers = BodyPointers::new(&[]);
    let mut inspection = Inspection::new(&pointers, api);
    inspection.read(body.as_bytes());
    inspection.finish(body.len() as u64)
}

/// A client must not lower what is reserved with a maximum that its server ignores.
#[test]
fn only_a_maximum_of_the_api_is_certain() {
    use Api::{Chat, Completions, GenerateContent, Messages, Other, Responses};

    let config = r#""generationConfig":{"maxOutputTokens":5}"#;
    let other_config = r#""generation_config":{"max_output_tokens":5}"#;
    for (member, known) in [
        (r#""max_tokens":5"#, &[Chat, Completions, Messages][..]),
        (r#""max_completion_tokens":5"#, &[Chat]),
        (r#""max_output_tokens":5"#, &[Responses]),
        (config, &[GenerateContent]),
        (other_config, &[GenerateContent]),
        (r#""max_gen_len":5"#, &[]),
        (r#""max_new_tokens":5"#, &[]),
        (r#""n_predict":5"#, &[]),
        (r#""Max_Tokens":5"#, &[]),
    ] {
        for api in [Chat, Completions, Responses, Messages, GenerateContent, Other] {
            let reserved = |body: String| read_by(api, &body).output.tokens(100);
            let least = if known.contains(&api) { 5 } else { 100 };
            assert_eq!(reserved(format!("{{{member}}}")), least, "{api:?}: {member}");
            assert_eq!(reserved(format!("{{{}}}", member.replace('5', "500"))), 500, "{api:?}: {member}");
        }
    }
    let both = r#"{"max_output_tokens":1,"max_tokens":9,"max_gen_len":8}"#;
    assert_eq!(read_by(Chat, both).output.tokens(100), 9);
    assert_eq!(read_by(Responses, both).output.tokens(100), 9);
    assert_eq!(read_by(GenerateContent, both).output.tokens(100), 100);
}

#[test]
fn only_pictures_have_a_background() {
    for value in ["transparent", "opaque", "auto"] {
        let body = format!(r#"{{"background":"{value}"}}"#);
        assert!(read_by(Api::Responses, &body).is_background, "{value}");
        assert!(!read_by(Api::Other, &body).is_background, "{value}");
    }
}

#[test]
fn requests_for_embeddings_have_no_output_of_their_own() {
    let body = r#"{"requests":[{"content":{}},{"content":{}},{"content":{}}]}"#;
    assert_eq!(read_by(Api::Embeddings, body).output.tokens(100), 0);
    assert_eq!(read_by(Api::Other, body).output.tokens(100), 300);
}
