from uotpool.cli import main

main()
