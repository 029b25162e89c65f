//! The proxy that breaks connections to a server really breaks and restores them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::{Fault, Mode, Software, until};

const PATIENCE: Duration = Duration::from_secs(10);

fn connect(fault: &Fault) -> TcpStream {
    let stream = TcpStream::connect(fault.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn exchange(mut stream: &TcpStream, commands: &str, answer: &str) {
    stream.write_all(commands.as_bytes()).unwrap();
    let mut read = vec![0; answer.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), answer);
}

#[test]
fn passes_and_delays() {
    let memcached = Software::Memcached.start();
    let fault = Fault::start(memcached.address, Mode::Pass);
    let stream = connect(&fault);
    exchange(&stream, "ms k 5\r\nvalue\r\nmg k v\r\n", "HD\r\nVA 5\r\nvalue\r\n");
    fault.set(Mode::Slow(Duration::from_millis(100)));
    let start = Instant::now();
    exchange(&stream, "mn\r\n", "MN\r\n");
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert_eq!(fault.open(), 1);
    drop(stream);
    until("it is closed", PATIENCE, || fault.open() == 0 && memcached.connections() == 0);
}

#[test]
fn resets_every_connection_in_the_middle_of_an_answer() {
    let memcached = Software::Memcached.start();
    let fault = Fault::start(memcached.address, Mode::Pass);
    let before = connect(&fault);
    exchange(&before, "mn\r\n", "MN\r\n");
    fault.set(Mode::Reset);
    for mut stream in [before, connect(&fault)] {
        stream.write_all(b"mn\r\n").unwrap();
        let mut read = Vec::new();
        assert_eq!(stream.read_to_end(&mut read).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(read, b"MN");
    }
    until("both are closed", PATIENCE, || fault.open() == 0 && memcached.connections() == 0);
    fault.set(Mode::Pass);
    exchange(&connect(&fault), "mn\r\n", "MN\r\n");
}

#[test]
fn refuses_and_listens_again() {
    let memcached = Software::Memcached.start();
    let fault = Fault::start(memcached.address, Mode::Refuse);
    let refused = || TcpStream::connect(fault.address).unwrap_err().kind();
    assert_eq!(refused(), ErrorKind::ConnectionRefused);
    for _ in 0..3 {
        fault.set(Mode::Pass);
        let mut stream = connect(&fault);
        exchange(&stream, "mn\r\n", "MN\r\n");
        fault.set(Mode::Refuse);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "what was open is closed");
        assert_eq!(refused(), ErrorKind::ConnectionRefused);
        until("it is closed", PATIENCE, || fault.open() == 0);
    }
}

#[test]
fn answers_what_a_server_would_not() {
    let memcached = Software::Memcached.start();
    let fault = Fault::start(memcached.address, Mode::OutOfMemory);
    let stream = connect(&fault);
    let full = "SERVER_ERROR out of memory storing object\r\n";
    exchange(&stream, "ms k 4\r\nmn\r\n\r\nmg k v\r\nmn\r\n", &format!("{full}{full}MN\r\n"));
    // In pieces.
    exchange(&stream, "set k 0 0 4\r\nm", full);
    exchange(&stream, "g k\r\nma k N1", "");
    exchange(&stream, "0\r\nversion\r\n", &format!("{full}VERSION 1.6.0\r\n"));
    // As Valkey says it.
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    let stream = connect(&fault);
    exchange(&stream, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nTI", oom);
    exchange(&stream, "ME\r\n", oom);
    fault.set(Mode::Garbage);
    exchange(&stream, "mn\r\n", "HTTP/1.1 400");
    assert_eq!(memcached.items(), 0);
}

#[test]
fn freezes_and_ends_with_connections_open() {
    let memcached = Software::Memcached.start();
    let fault = Fault::start(memcached.address, Mode::Freeze);
    let mut stream = connect(&fault);
    stream.write_all(b"mn\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    fault.set(Mode::Pass);
    exchange(&stream, "", "MN\r\n");
    fault.set(Mode::Freeze);
    stream.write_all(b"mn\r\n").unwrap();
    drop(fault);
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "it is closed without an answer");
    until("nothing is left at memcached", PATIENCE, || memcached.connections() == 0);
}
