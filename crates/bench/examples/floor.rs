use farblock_bench::floor::{Drive, Server, drive};
use farblock_bench::{Cancel, Meters, Pattern, Rw};
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let rw: Rw = a[0].parse().unwrap();
    let bs = farblock_bench::parse_size(&a[1]).unwrap() as u32;
    let n = |i: usize| a[i].parse::<u32>().unwrap();
    let (conns, depth) = (n(2), n(3));
    let secs = a.get(4).map_or(2.0, |s| s.parse().unwrap());
    let server = Server::start("127.0.0.1:0", 1, &[0]).unwrap();
    let load = Drive {
        pattern: Pattern::new(rw, bs, conns, depth),
        threads: 1,
        cpus: vec![1],
        ramp: Duration::from_millis(300),
        runtime: Duration::from_secs_f64(secs),
        meters: Meters::default(),
    };
    let f = drive(server.address(), &load, &Cancel::new()).unwrap();
    println!(
        "{:9} {:6} c{:<4} qd{:<4} {:9.0} IOPS {:7.0} MiB/s p50 {:.1} p99 {:.1} us cpu {:.0}%",
        a[0],
        a[1],
        conns,
        depth,
        f.iops,
        f.mib_per_second,
        f.latency.p50_ns as f64 / 1e3,
        f.latency.p99_ns as f64 / 1e3,
        f.host_cpu.unwrap().percent_of_core
    );
}
