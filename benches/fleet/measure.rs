//! The cost of exchanges for a real Memcached on this machine, and their time over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::memcached::Memcached;

/// Shares of exchanges, by their time.
const SHARES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 0.999];
const LENGTH: Duration = Duration::from_secs(2);
/// The reply to the last command of an exchange.
const END: &[u8] = b"END\r\n";

/// Adds to each key, and reads two of its counters.
fn exchange(keys: usize, connection: usize) -> Vec<u8> {
    let name = |key: usize, bucket: usize| {
        format!("gw:per-client:{:032x}#s.{}", key + 1_000 * connection, 1_795_250_095 + bucket)
    };
    let mut out: String = (0..keys)
        .map(|key| format!("ma {} N7 J1 D1 q O{key}\r\n", name(key, 1)))
        .chain(["version\r\n".to_owned()])
        .collect();
    out += "gets";
    for key in 0..keys {
        out.push(' ');
        out += &[name(key, 0), name(key, 1)].join(" ");
    }
    (out + "\r\n").into_bytes()
}

/// For one number of connections and keys.
struct Measured {
    /// Exchanges per second, and CPU seconds of Memcached for one.
    speed: f64,
    cost: f64,
    /// The longest time of this share of exchanges, in seconds.
    took: [f64; SHARES.len()],
}

fn measure(memcached: &Memcached, connections: usize, keys: usize) -> Measured {
    let connect = |address: SocketAddr| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    };
    let mut streams: Vec<_> =
        (0..connections).map(|number| (connect(memcached.address), exchange(keys, number))).collect();
    let mut times = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    let mut round = |times: &mut Vec<f64>| {
        let begun = Instant::now();
        for (stream, commands) in &mut streams {
            stream.write_all(commands).unwrap();
        }
        for (stream, _) in &mut streams {
            let mut length = 0;
            while !buffer[..length].ends_with(END) {
                let more = stream.read(&mut buffer[length..]).unwrap();
                assert!(more > 0, "memcached has closed a connection");
                length += more;
            }
        }
        times.push(begun.elapsed().as_secs_f64());
    };
    (0..100).for_each(|_| round(&mut times));
    times.clear();
    let (begun, cpu) = (Instant::now(), memcached.cpu());
    while begun.elapsed() < LENGTH {
        round(&mut times);
    }
    let exchanges = (times.len() * connections) as f64;
    let (speed, cost) = (exchanges / begun.elapsed().as_secs_f64(), (memcached.cpu() - cpu) / exchanges);
    times.sort_unstable_by(f64::total_cmp);
    Measured { speed, cost, took: SHARES.map(|share| times[(times.len() as f64 * share) as usize]) }
}

/// Measures a Memcached with one thread on core 1.
pub(crate) fn print() {
    println!(
        "\n## Exchanges with a real Memcached (one thread on core 1, this process on core {})\n",
        super::cpu::cores()
    );
    println!(
        "| connections | keys in an exchange | exchanges/s | commands/s | us of Memcached per exchange | took: the least, 50, 90, 99 and 99.9 % (us) |"
    );
    println!("|---|---|---|---|---|---|");
    let memcached = Memcached::start("1");
    let mut costs = Vec::new();
    for connections in [1, 64] {
        for keys in [1, 8, 64, 128] {
            let Measured { speed, cost, took } = measure(&memcached, connections, keys);
            let commands = 3.0 * keys as f64;
            let took =
                if connections == 1 { took.map(|time| format!("{:.0}", time * 1e6)).join(", ") } else { String::new() };
            println!("| {connections} | {keys} | {speed:.0} | {:.0} | {:.2} | {took} |", speed * commands, cost * 1e6);
            costs.push((connections, commands, cost));
        }
    }
    for connections in [1, 64] {
        let of: Vec<_> = costs.iter().filter(|(of, ..)| *of == connections).collect();
        let ((_, few, first), (_, many, last)) = (of[0], of[of.len() - 1]);
        let command = (last - first) / (many - few);
        println!(
            "\nwith {connections} connections: {:.2} us for an exchange, and {:.2} us for each command in it",
            (first - command * few) * 1e6,
            command * 1e6
        );
    }
}
