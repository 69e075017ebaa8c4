from lingchat.cli import main

raise SystemExit(main())
