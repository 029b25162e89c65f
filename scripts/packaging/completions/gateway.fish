# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gateway_global_optspecs
    string join \n c/config= config-every= state-dir= watch h/help V/version
end

function __fish_gateway_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gateway_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gateway_using_subcommand
    set -l cmd (__fish_gateway_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gateway -n "__fish_gateway_needs_command" -s c -l config -d 'The configuration: a file, a folder whose *.toml files are united, an https:// URL, or env:NAME for a variable that has one of them [default: gateway.toml]' -r
complete -c gateway -n "__fish_gateway_needs_command" -l config-every -d 'How often a URL is asked for a new configuration, 1s to 1d [default: 10s]' -r
complete -c gateway -n "__fish_gateway_needs_command" -l state-dir -d 'The folder for the last good configuration of a URL, which is used at a start while its server is away [default: that of systemd, or ~/.local/state/gateway]' -r -F
complete -c gateway -n "__fish_gateway_needs_command" -l watch -d 'Read the configuration again when one of its files changes. SIGHUP does it at any time'
complete -c gateway -n "__fish_gateway_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gateway -n "__fish_gateway_needs_command" -s V -l version -d 'Print version'
complete -c gateway -n "__fish_gateway_needs_command" -f -a "check" -d 'Check the file and print its meaning: routes in the order they match, limits, the store'
complete -c gateway -n "__fish_gateway_needs_command" -f -a "explain" -d 'Print what would happen to a request: its route, limits, key and rates, and the response with empty counters'
complete -c gateway -n "__fish_gateway_needs_command" -f -a "simulate" -d 'Print what the limits would have done to the traffic of access logs'
complete -c gateway -n "__fish_gateway_needs_command" -f -a "top" -d 'Show the dashboard of a running gateway in this terminal'
complete -c gateway -n "__fish_gateway_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gateway -n "__fish_gateway_using_subcommand check" -l against -d 'The configuration in use: print what a reload would do to its counters, and whether it needs a restart' -r
complete -c gateway -n "__fish_gateway_using_subcommand check" -s c -l config -d 'The configuration: a file, a folder whose *.toml files are united, an https:// URL, or env:NAME for a variable that has one of them [default: gateway.toml]' -r
complete -c gateway -n "__fish_gateway_using_subcommand check" -l state-dir -d 'The folder for the last good configuration of a URL, which is used at a start while its server is away [default: that of systemd, or ~/.local/state/gateway]' -r -F
complete -c gateway -n "__fish_gateway_using_subcommand check" -l json -d 'Print the settings as JSON, with every default; secrets are masked'
complete -c gateway -n "__fish_gateway_using_subcommand check" -l live -d 'Ask the gateway that runs with this file whether it is alive, for health checks'
complete -c gateway -n "__fish_gateway_using_subcommand check" -l ready -d 'The same, but ask whether it takes requests: not while it drains'
complete -c gateway -n "__fish_gateway_using_subcommand check" -s h -l help -d 'Print help'
complete -c gateway -n "__fish_gateway_using_subcommand explain" -s X -l request -d 'The method' -r
complete -c gateway -n "__fish_gateway_using_subcommand explain" -s H -l header -d 'A header; can be repeated' -r
complete -c gateway -n "__fish_gateway_using_subcommand explain" -l from -d 'The address that the request comes from' -r
complete -c gateway -n "__fish_gateway_using_subcommand explain" -s c -l config -d 'The configuration: a file, a folder whose *.toml files are united, an https:// URL, or env:NAME for a variable that has one of them [default: gateway.toml]' -r
complete -c gateway -n "__fish_gateway_using_subcommand explain" -l state-dir -d 'The folder for the last good configuration of a URL, which is used at a start while its server is away [default: that of systemd, or ~/.local/state/gateway]' -r -F
complete -c gateway -n "__fish_gateway_using_subcommand explain" -l show-keys -d 'Print keys in full; otherwise they are masked'
complete -c gateway -n "__fish_gateway_using_subcommand explain" -s h -l help -d 'Print help'
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l html -d 'Write one page with charts, too' -r -F
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l field -d 'The field of JSON lines that has the client, time, method, path, host, status or header:NAME; can be repeated' -r
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l reorder -d 'How much later than others a line may be; later ones are skipped' -r
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l host -d 'The host of requests whose line names none [default: the one that routes name, if there is only one]' -r
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -s c -l config -d 'The configuration: a file, a folder whose *.toml files are united, an https:// URL, or env:NAME for a variable that has one of them [default: gateway.toml]' -r
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l state-dir -d 'The folder for the last good configuration of a URL, which is used at a start while its server is away [default: that of systemd, or ~/.local/state/gateway]' -r -F
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l json -d 'Print one JSON object'
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -l suggest -d 'Print sections with rates to paste, which would have touched few keys. With --json they are part of it'
complete -c gateway -n "__fish_gateway_using_subcommand simulate" -s h -l help -d 'Print help'
complete -c gateway -n "__fish_gateway_using_subcommand top" -l admin -d 'The admin listener: a URL, or unix:PATH' -r
complete -c gateway -n "__fish_gateway_using_subcommand top" -l token-file -d 'A file with the token of the admin listener; it is read again for each connection' -r -F
complete -c gateway -n "__fish_gateway_using_subcommand top" -s c -l config -d 'The configuration: a file, a folder whose *.toml files are united, an https:// URL, or env:NAME for a variable that has one of them [default: gateway.toml]' -r
complete -c gateway -n "__fish_gateway_using_subcommand top" -l state-dir -d 'The folder for the last good configuration of a URL, which is used at a start while its server is away [default: that of systemd, or ~/.local/state/gateway]' -r -F
complete -c gateway -n "__fish_gateway_using_subcommand top" -s h -l help -d 'Print help'
complete -c gateway -n "__fish_gateway_using_subcommand help; and not __fish_seen_subcommand_from check explain simulate top help" -f -a "check" -d 'Check the file and print its meaning: routes in the order they match, limits, the store'
complete -c gateway -n "__fish_gateway_using_subcommand help; and not __fish_seen_subcommand_from check explain simulate top help" -f -a "explain" -d 'Print what would happen to a request: its route, limits, key and rates, and the response with empty counters'
complete -c gateway -n "__fish_gateway_using_subcommand help; and not __fish_seen_subcommand_from check explain simulate top help" -f -a "simulate" -d 'Print what the limits would have done to the traffic of access logs'
complete -c gateway -n "__fish_gateway_using_subcommand help; and not __fish_seen_subcommand_from check explain simulate top help" -f -a "top" -d 'Show the dashboard of a running gateway in this terminal'
complete -c gateway -n "__fish_gateway_using_subcommand help; and not __fish_seen_subcommand_from check explain simulate top help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
