"""The processes of one run: who starts them, how long they may take, and which one is to blame when one fails."""
