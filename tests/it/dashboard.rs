//! The dashboard: its protective headers, and the page in a real browser, which `scripts/test --all` installs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{Authority, Client, Gateway, Software, Upstream, reply, unix};

#[track_caller]
fn between<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    assert_eq!((page.matches(start).count(), page.matches(end).count()), (1, 1), "{start}");
    page.split_once(start).unwrap().1.split_once(end).unwrap().0
}

#[test]
fn the_policy_allows_what_is_in_the_page_and_nothing_else() {
    let gateway = Gateway::with_admin("token = \"secret\"", "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    let response = gateway.admin("/");
    let page = response.text();
    let header = |name: &str| response.headers.must(name).to_owned();
    assert_eq!((response.status, header("content-type").as_str()), (200, "text/html; charset=utf-8"));
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(header(name), value, "{name}");
    }
    let source = |text: &str| format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())));
    let style = source(between(page, "<style>", "</style>"));
    let script = source(between(page, "<script type=\"module\">", "</script>"));
    let policy = header("content-security-policy");
    let directives: Vec<_> = policy.split("; ").collect();
    assert_eq!(
        directives,
        [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src data:",
            &format!("style-src {style}"),
            &format!("script-src {script}"),
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    );
    assert!(!page.contains("secret"));
    // Nothing is loaded, and nothing becomes HTML or code.
    for forbidden in ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
    {
        let found: Vec<_> = page.lines().filter(|line| line.contains(forbidden)).collect();
        let known = found.iter().all(|line| line.contains("http://www.w3.org/2000/svg"));
        assert!(known, "{forbidden}: {found:?}");
    }
}

/// Would change the title if any text of clients or files became HTML.
const HOSTILE: &str = "<img src=x onerror=document.title='broken'>";

/// 50 limits. Three have refused requests, and another one has an override.
fn many_limits() -> Gateway {
    let limit = |number: u32| {
        format!(
            "[limits.limit-{number:02}]\nkey = \"{}\"\nrates = [\"1/d\"]\n\
             [[routes]]\npath = \"/{number:02}\"\nrespond = {{ status = 200 }}\nlimits = [\"limit-{number:02}\"]\n",
            if number == 11 { "header:x-api-key" } else { "global" }
        )
    };
    let gateway = Gateway::with_admin("show_keys = true", &(0..50).map(limit).collect::<String>());
    let mut client = gateway.client();
    for (path, times) in [("/23", 3), ("/40", 9), ("/07", 5), ("/08", 1)] {
        (0..times).for_each(|_| drop(client.get(path)));
    }
    let body = r#"{"rates": ["100/s", "5000/d"], "for": "1h"}"#;
    let set = Client::connect(gateway.admin).call(format!(
        "PUT /api/limits/limit-11/keys/partner HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
        gateway.admin,
        body.len()
    ));
    assert_eq!(set.status, 200, "{}", set.text());
    gateway
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_works_in_a_browser() {
    let upstream = Upstream::start(|_| reply(200, "ok"));
    let limit = format!(
        "[limits.per-key]\nkey = \"header:x-api-key\"\nrates = [\"5/h\"]\nbody = \"{HOSTILE}\"\n\
         ban = {{ after = 10000 }}\n\
         [[routes]]\npath = \"/api/*\"\nupstream = \"up\"\nlimits = [\"per-key\"]\n\
         [limits.strict]\nkey = \"header:x-api-key\"\nrates = [\"1/h\"]\nban = {{ after = 1 }}\n\
         [[routes]]\npath = \"/strict\"\nrespond = {{ status = 200 }}\nlimits = [\"strict\"]\n"
    );
    let rest = upstream.section() + &limit;
    let authority = Authority::new();
    let now = unix();
    let certificate = |(name, end): (&str, Duration)| {
        let not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
        authority.issue_with(name, name, &[name], |params| params.not_after = not_after).toml()
    };
    let days = |number: u64| Duration::from_secs(number * 86_400);
    let certificates = [("later.test", now + days(100)), ("soon.test", now + days(10)), ("over.test", now)];
    let certificates = certificates.map(certificate);
    let decisions =
        format!("[decisions]\nlisten = \"127.0.0.1:0\"\ntls = {{ certificates = [{}] }}\n", certificates.join(", "));
    let gateway = Gateway::with_admin("show_keys = true", &(decisions + &rest));
    let shared = Software::Valkey.start();
    let guarded = Gateway::with_admin("token = \"the-token\"", &(shared.store() + &rest));
    let many = many_limits();
    let none = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = {}\n");
    (0..3).for_each(|_| drop(gateway.client().get_with("/strict", "x-api-key: scraper\r\n")));
    let over = Arc::new(AtomicBool::new(false));
    let (address, stop) = (gateway.http, over.clone());
    let load = thread::spawn(move || {
        let mut client = Client::connect(address);
        while !stop.load(Ordering::Relaxed) {
            client.get_with("/api/one", "x-api-key: busy\r\n");
            client.get("/nowhere");
            thread::sleep(Duration::from_millis(20));
        }
    });
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg(root.join("tests/it/dashboard.py"))
        .args([
            &gateway.admin.to_string(),
            &guarded.admin.to_string(),
            &many.admin.to_string(),
            &none.admin.to_string(),
            HOSTILE,
        ])
        .arg(gateway.config_path())
        .arg(gateway.pid().as_raw_nonzero().to_string())
        .env("PYTHONPATH", root.join("target/selenium"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    over.store(true, Ordering::Relaxed);
    load.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).ends_with("done\n"), "{}", text(&output.stdout));
}
