package budget_test

func childMain() {}
