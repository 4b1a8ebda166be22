"""The texts of answers: new ids to new text, what parsers are given, and what FastDeploy would have lost."""
