//! `gateway top` in a terminal, against gateways under load.

use std::time::Duration;

use crate::harness::{Client, Gateway, Terminal, limited};

const SIZE: (u16, u16) = (80, 24);

fn top(gateway: &Gateway, size: (u16, u16)) -> Terminal {
    Terminal::start(&["top", "--admin", &format!("http://{}", gateway.admin)], &[], size)
}

#[test]
fn look() {
    let gateway = Gateway::start(&limited("header:x-api-key", "50/s", ""));
    let mut top = top(&gateway, SIZE);
    let mut client = gateway.client();
    for _ in 0..300 {
        client.get_with("/", "x-api-key: some-customer\r\n");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{}", top.wait("keys", |screen| screen.contains("so…er#")));
    top.resize(140, 50);
    println!("{}", top.wait("keys", |screen| screen.contains("Reloads")));
    top.resize(80, 24);
    top.press("?");
    println!("{}", top.wait("help", |screen| screen.contains("Help")));
    top.press("q");
    assert_eq!(top.wait_exit().code(), Some(0));
    top.expect_restored();
}
